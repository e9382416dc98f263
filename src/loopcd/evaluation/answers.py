"""Texts that were made elsewhere, graded like a method's: a file with a JSON line {"id", "text"} for each item."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopcd.evaluation.data import log
from loopcd.evaluation.plan import Run
from loopcd.evaluation.results import Results, summarise
from loopcd.evaluation.runner import Outcome
from loopcd.evaluation.specs import MethodSpec
from loopcd.evaluation.task import Item, Task


@dataclass(frozen=True)
class _Given(MethodSpec):
    """Stands where a method stands in the results; nothing can be built of it."""

    def __post_init__(self) -> None:
        pass


METHOD = _Given("answers")


def grade_answers(task: Task, texts: Sequence[str], source: str) -> Results:
    """The results of these texts, one an item. `source` stands where the model's name does."""
    grades = task.grade(task.items, texts)
    nothing = tuple(() for _ in texts)
    return summarise(task, source, None, [Outcome(Run(METHOD, None), tuple(texts), nothing, tuple(grades), 0, None)])


def read_answers(path: Path, items: Sequence[Item], some: bool = False) -> list[str]:
    """The items' texts in the items' order. `some`: the items are a part of the task, and others' answers are left out."""
    given = _read(path)
    known = {item.id for item in items}
    missing, foreign = [item.id for item in items if item.id not in given], [name for name in given if name not in known]
    if foreign and not some:
        raise ValueError(f"--answers {path}: {foreign[0]!r} is no item of this task ({len(foreign)} such ids)")
    if missing:
        raise ValueError(f"--answers {path}: no text for {missing[0]!r} ({len(missing)} of {len(items)} items are missing)")
    if foreign:
        log.warning("--answers %s: %d answers to other items than the asked %d are left out", path, len(foreign), len(items))
    return [given[item.id] for item in items]


def _read(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise ValueError(f"--answers {path}: there is no such file")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"--answers {path} is no text in UTF-8: {error}") from error
    given: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, text = _parsed(line, f"--answers {path}, line {number}")
        if name in given:
            raise ValueError(f"--answers {path}, line {number}: {name!r} stands there twice")
        given[name] = text
    return given


def _parsed(line: str, where: str) -> tuple[str, str]:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in ("id", "text")):
        raise ValueError(f'{where} must be {{"id": …, "text": …}}, both texts')
    return found["id"], found["text"]
