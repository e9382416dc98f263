"""Texts of two methods side by side, where they part: found, cut, and shown on the terminal and as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING

from loopcd.evaluation.results import BASELINE
from loopcd.evaluation.runner import Outcome
from loopcd.evaluation.table import escaped
from loopcd.evaluation.task import Item, Task

if TYPE_CHECKING:
    from rich.console import RenderableType

# controls, and marks that turn the direction of text: no display must obey what a model writes, or who made the data
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST = 4000  # characters compared; a text that runs on says nothing more
MOST_ALIKE = 200_000  # pairs of equal words: texts that repeat themselves would take minutes, so frequent words begin no match


@dataclass(frozen=True)
class Piece:
    text: str
    differs: bool


@dataclass(frozen=True)
class Side:
    """One method's text."""

    method: str
    right: bool
    pieces: tuple[Piece, ...]

    @property
    def title(self) -> str:
        return f"{self.method} ({'right' if self.right else 'wrong'})"

    def bracketed(self) -> str:
        """What differs stands between ⟦ and ⟧."""
        return "".join(f"⟦{piece.text}⟧" if piece.differs else piece.text for piece in self.pieces)

    def code_block(self) -> list[str]:
        """Lines of Markdown in which nothing that a model wrote becomes markup."""
        return ["```text", *self.bracketed().replace("```", "'''").splitlines(), "```"]


@dataclass(frozen=True)
class Parting:
    """One item as greedy and as another method answered it."""

    item: Item
    question: str
    greedy: Side
    other: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.greedy, self.other

    @property
    def about(self) -> tuple[str, str, str]:
        """The item's name, question and right answer, as a display may get them."""
        name, question, gold = (_HIDDEN.sub("·", str(each)) for each in (self.item.id, self.question, self.item.gold))
        return name, question, gold


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
    chosen = [place for turn in zip_longest(*kinds.values()) for place in turn if place is not None]
    partings = []
    for place in chosen[:number]:
        cut = pieces(*(made.texts[place].strip()[:LONGEST] for made in (greedy, other)))
        right = (made.grades[place][metric] for made in (greedy, other))
        sides = map(Side, (greedy.run.method.label, other.run.method.label), right, cut)
        partings.append(Parting(task.items[place], task.question(task.items[place].prompt), *sides))
    return partings


def pieces(before: str, after: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Both texts cut where they agree and where they do not, word by word."""
    left, right = (re.findall(r"\s+|\w+|[^\w\s]", _HIDDEN.sub("·", text)) for text in (before, after))
    made: tuple[list[Piece], list[Piece]] = ([], [])
    there = Counter(right)
    alike = sum(number * there[word] for word, number in Counter(left).items())
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=alike > MOST_ALIKE).get_opcodes():
        for side, words in zip(made, (left[a:b], right[c:d]), strict=True):
            if words:
                side.append(Piece("".join(words), kind != "equal"))
    return tuple(made[0]), tuple(made[1])


def side_by_side(partings: Sequence[Parting], colours: bool = True) -> RenderableType:
    """Where the texts part they are coloured; without colours, in a file say, it stands in brackets."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    drawn = []
    for each in partings:
        name, question, gold = each.about
        caption = Text(f"{name}, gold {gold}")  # not a string: brackets in it are no markup
        table = Table(title=Text(question[-600:]), title_justify="left", caption=caption, expand=True)
        cells = []
        for side, style in zip(each.sides, ("bold red underline", "bold green underline"), strict=True):
            table.add_column(side.title, overflow="fold", ratio=1)
            coloured = Text.assemble(*((piece.text, style if piece.differs else "") for piece in side.pieces))
            cells.append(coloured if colours else Text(side.bracketed()))
        table.add_row(*cells)
        drawn.append(table)
    return Group(*drawn)


def markdown_lines(parting: Parting) -> list[str]:
    """Both texts in code blocks; nothing of the item becomes markup."""
    name, question, gold = parting.about
    lines = [f"**{escaped(name)}**, right answer {escaped(gold)}", ""]
    lines += [*(f"> {escaped(line)}" for line in question.splitlines()), ""]
    for side in parting.sides:
        lines += [f"{escaped(side.title)}:", "", *side.code_block(), ""]
    return lines
