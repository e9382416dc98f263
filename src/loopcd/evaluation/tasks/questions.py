"""Benchmarks of questions that are answered in words: a function reads an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopcd.decoding.texts import trim
from loopcd.evaluation.data import DataFile, from_hub, read_lines
from loopcd.evaluation.graders import HASHES, flex_match, strict_match
from loopcd.evaluation.task import Grades, Item, Task, TaskOptions

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ReadTask(Task):
    """`read(text, item)` says by each metric whether a text, up to its end, is right. Every reference answer is."""

    name: str
    items: Sequence[Item]
    max_new_tokens: int
    files: tuple[DataFile, ...]
    split: str
    shots: int
    metrics: tuple[str, ...] = ("strict", "flex")
    stop: tuple[str, ...]
    marks: tuple[str, str]  # the texts before and after the question in a prompt
    protocol: str
    read: Callable[[str, Item], Grades] = field(repr=False)
    grader: str  # what `read` does, in words
    template: str
    readings: Mapping[str, str] = field(default_factory=dict)  # what our metrics are called elsewhere
    more: Mapping[str, Any] = field(default_factory=dict)  # for the manifest

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        return [self.read(trim(text, self.stop)[0], item) for item, text in zip(items, texts, strict=True)]

    def question(self, prompt: str) -> str:
        before, after = self.marks
        return prompt.rpartition(before)[2].removesuffix(after).strip()

    def describe(self) -> dict[str, Any]:
        return {
            "grader": self.grader,
            **({"readings": self.readings} if self.readings else {}),
            "data": [file.describe() for file in self.files],
            "split": self.split,
            "shots": self.shots,
            **self.more,
            "template": self.template,
        }


def read_records(options: TaskOptions, file: str, hub: tuple[str, str | None, str]) -> tuple[Records, DataFile]:
    """From the file in the user's folder, or the hub's (data set, configuration, split)."""
    return from_hub(*hub) if options.data is None else read_lines(options.data, file)


def read_number(text: str, item: Item, conclusion: re.Pattern[str] = HASHES) -> Grades:
    return {"strict": strict_match(text, item.gold, conclusion), "flex": flex_match(text, item.gold)}
