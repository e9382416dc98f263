"""GSM8K as the paper's authors ran it: 1,319 test problems, the first three chain-of-thought examples that lm-eval ships.

Strict takes the N of the first "The answer is N.", flex the last number. (lm-eval's own task, with its `####` and random
shots, is `gsm8k-lm-eval`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loopcd.decoding.texts import trim
from loopcd.evaluation.data import DataFile, from_hub, read_lines, shuffled_rank, subset
from loopcd.evaluation.graders import THE_ANSWER_IS, flex_match, strict_match
from loopcd.evaluation.harness import Records, shipped_examples
from loopcd.evaluation.task import Grades, Item, TaskOptions

SHOTS = 3
TUNING = 500  # problems of the training split that settings are chosen on
FILES = {"train": "gsm8k_train.jsonl.gz", "test": "gsm8k_test.jsonl"}
TEMPLATE = "Q: {question}\nA: {target}"


@dataclass(frozen=True)
class GSM8K:
    name: str
    items: Sequence[Item]
    max_new_tokens: int
    file: DataFile
    split: str
    metrics: tuple[str, ...] = ("strict", "flex")
    stop: tuple[str, ...] = ("\n\n", "Q:", "</s>")
    protocol: str = "paper"

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        return [self._grades(trim(text, self.stop)[0], item.gold) for item, text in zip(items, texts, strict=True)]

    def _grades(self, text: str, gold: str) -> Grades:
        return {"strict": strict_match(text, gold, THE_ANSWER_IS), "flex": flex_match(text, gold)}

    def ceiling(self) -> None:
        return None

    def question(self, prompt: str) -> str:
        return prompt.rpartition("Q:")[2].removesuffix("\nA:").strip()

    def describe(self) -> dict[str, Any]:
        return {
            "grader": 'the first "The answer is N." (strict), the last number (flex)',
            "data": [self.file.describe()],
            "split": self.split,
            "shots": SHOTS,
            "examples": "the first of lm-eval's gsm8k_cot",
            "template": TEMPLATE,
        }


def make(name: str, options: TaskOptions) -> GSM8K:
    tuning = options.split == "tuning"
    records, file = read_split(options, "train" if tuning else "test")
    chosen = tuning_split(records)[1] if tuning else records
    shots = [TEMPLATE.format(**example) for example in shipped_examples("gsm8k/gsm8k-cot.yaml", SHOTS)]
    made = [
        Item(
            f"{name}/{'tuning' if tuning else 'test'}/{number}",
            "\n\n".join([*shots, f"Q: {record['question']}\nA:"]),
            record["answer"].rpartition("####")[2].strip(),
            record,
        )
        for number, record in enumerate(chosen)
    ]
    split = f"{len(chosen)} problems of train" if tuning else "test"
    return GSM8K(name, subset(made, options.limit, [item.id for item in made]), options.max_new_tokens or 256, file, split)


def read_split(options: TaskOptions, split: str) -> tuple[Records, DataFile]:
    """The problems of "train" or "test"."""
    if options.data is None:
        return from_hub("openai/gsm8k", "main", split)
    return read_lines(options.data, FILES[split])


def tuning_split(train: Records) -> tuple[Records, Records]:
    """(the rest, the tuning problems)."""
    order = sorted(range(len(train)), key=lambda number: shuffled_rank(f"gsm8k/train/{number}"))
    chosen = set(order[: min(TUNING, len(train) // 2)])
    tuning = [record for number, record in enumerate(train) if number in chosen]
    return [record for number, record in enumerate(train) if number not in chosen], tuning
