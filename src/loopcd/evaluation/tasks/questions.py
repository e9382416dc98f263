"""Benchmarks of questions that are answered in words: what they have in common, and those whose answers a function reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopcd.decoding.texts import trim
from loopcd.evaluation.data import DataFile
from loopcd.evaluation.task import Grades, Item


@dataclass(frozen=True, kw_only=True)
class QuestionTask:
    """All of a task but its grading; every reference answer is right."""

    name: str
    items: Sequence[Item]
    max_new_tokens: int
    files: tuple[DataFile, ...]
    split: str
    shots: int
    metrics: tuple[str, ...]
    stop: tuple[str, ...]
    marks: tuple[str, str]  # the texts before and after the question in a prompt
    protocol: str

    def ceiling(self) -> None:
        return None

    def question(self, prompt: str) -> str:
        before, after = self.marks
        return prompt.rpartition(before)[2].removesuffix(after).strip()


@dataclass(frozen=True, kw_only=True)
class ReadTask(QuestionTask):
    """`read(text, gold)` says by each metric whether a text, up to its end, gives the right answer."""

    read: Callable[[str, Any], Grades] = field(repr=False)
    grader: str  # what `read` does, in words
    template: str
    more: Mapping[str, Any] = field(default_factory=dict)  # for the manifest

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        return [self.read(trim(text, self.stop)[0], item.gold) for item, text in zip(items, texts, strict=True)]

    def describe(self) -> dict[str, Any]:
        return {
            "grader": self.grader,
            "data": [file.describe() for file in self.files],
            "split": self.split,
            "shots": self.shots,
            **self.more,
            "template": self.template,
        }
