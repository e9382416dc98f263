"""The built-in word problems as a task: `steps` and its variants. Nothing is downloaded; the items are made by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loopcd.decoding.texts import trim
from loopcd.evaluation.data import DataFile, fingerprint_records
from loopcd.evaluation.graders import flex_match, strict_match
from loopcd.evaluation.task import Grades, Item, TaskOptions
from loopcd.evaluation.tasks import steps

ITEMS = 500  # where no limit is given; a limit may be larger, the generator does not end
LONGEST_ANSWER = 112  # tokens; the longest worked answer of any variant is a little shorter


@dataclass(frozen=True)
class WordProblems:
    name: str
    items: Sequence[Item]
    max_new_tokens: int
    source: DataFile
    split: str
    metrics: tuple[str, ...] = ("strict", "flex")
    stop: tuple[str, ...] = ("Question:",)
    protocol: str = "loopcd"

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        return [self._grades(trim(text, self.stop)[0], item.gold) for item, text in zip(items, texts, strict=True)]

    def _grades(self, text: str, gold: str | int) -> Grades:
        return {"strict": strict_match(text, gold), "flex": flex_match(text, gold)}

    def ceiling(self) -> None:
        return None

    def question(self, prompt: str) -> str:
        return prompt.rpartition("Question:")[2].removesuffix("Answer:").strip()

    def describe(self) -> dict[str, Any]:
        return {
            "grader": "the number after #### (strict), the last number (flex), as in lm-eval's gsm8k",
            "data": [self.source.describe()],
            "split": self.split,
            "shots": 0,
            "template": "Question: {question}\nAnswer:",
        }


def make(name: str, options: TaskOptions) -> WordProblems:
    if options.data is not None:
        raise ValueError(f"--data: {name} is made by the package and reads no files")
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit {options.limit}: a whole number of at least 1")
    split = "tuning" if options.split == "tuning" else "test"
    problems = steps.problems(name, split, ITEMS if options.limit is None else options.limit)
    items = [Item(f"{name}/{split}/{number}", each.prompt, each.gold, each) for number, each in enumerate(problems)]
    source = fingerprint_records(f"made by loopcd: {name}/{split}, seed 0", [each.text for each in problems])
    return WordProblems(name, items, options.max_new_tokens or LONGEST_ANSWER, replace(source, known=True), split)
