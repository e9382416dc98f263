"""Texts of two methods side by side, where they part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from loopcd.evaluation.results import BASELINE
from loopcd.evaluation.runner import Outcome
from loopcd.evaluation.task import Item, Task

LONGEST = 4000  # characters compared; a text that runs on says nothing more


@dataclass(frozen=True)
class Piece:
    text: str
    differs: bool


@dataclass(frozen=True)
class Parting:
    """One item as greedy and as another method answered it."""

    item: Item
    question: str
    method: str
    greedy: tuple[Piece, ...]
    other: tuple[Piece, ...]
    greedy_right: bool
    other_right: bool


def diverging(task: Task, outcomes: Sequence[Outcome], number: int = 3) -> list[Parting]:
    """Up to `number` items on which greedy and the first other method wrote different texts.

    In turn: one that became right, one that became wrong, one that stayed what it was.
    """
    greedy = next((each for each in outcomes if each.run.method.label == BASELINE), None)
    other = next((each for each in outcomes if each.run.method.label != BASELINE), None)
    if greedy is None or other is None:
        return []
    metric = task.metrics[0]
    kinds: dict[str, list[int]] = {"gained": [], "lost": [], "same": []}
    for place, (before, after) in enumerate(zip(greedy.texts, other.texts, strict=True)):
        if before != after:
            was, now = greedy.grades[place][metric], other.grades[place][metric]
            kinds["same" if was == now else "gained" if now else "lost"].append(place)
    chosen: list[int] = []
    while len(chosen) < number and any(kinds.values()):
        chosen += [places.pop(0) for places in kinds.values() if places]
    return [_example(task, greedy, other, place) for place in chosen[:number]]


def _example(task: Task, greedy: Outcome, other: Outcome, place: int) -> Parting:
    item, metric = task.items[place], task.metrics[0]
    before, after = pieces(greedy.texts[place].strip()[:LONGEST], other.texts[place].strip()[:LONGEST])
    question, method = task.question(item.prompt), other.run.method.label
    return Parting(item, question, method, before, after, greedy.grades[place][metric], other.grades[place][metric])


def pieces(before: str, after: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Both texts cut where they agree and where they do not, word by word."""
    left, right = _words(before), _words(after)
    made: tuple[list[Piece], list[Piece]] = ([], [])
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for side, words in zip(made, (left[a:b], right[c:d]), strict=True):
            if words:
                side.append(Piece("".join(words), kind != "equal"))
    return tuple(made[0]), tuple(made[1])


def _words(text: str) -> list[str]:
    visible = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "·", text)  # a terminal must not obey what a model writes
    return re.findall(r"\s+|\w+|[^\w\s]", visible)
