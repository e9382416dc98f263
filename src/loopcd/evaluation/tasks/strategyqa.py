"""StrategyQA: 2,290 yes/no questions, six worked examples, chain of thought.

The examples are six of the data set's own questions with its own facts as the chain, or those of a file the user gives: a
JSON list of {"question", "chain", "answer"}. Questions that serve as examples are not scored. An answer is the last
"answer is yes" or "answer is no" of the text; a text without one is wrong, never guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopcd.evaluation.data import DataFile, fingerprint, from_hub, halves, read_lines, subset
from loopcd.evaluation.task import Grades, Item, TaskOptions

# three with the answer no and three with yes, of the part that the authors held out as development set
EXAMPLES = (
    "c91eafafed5a8f80bb5a",
    "0edac4af92465027fe27",
    "427fdafa9e7047587d75",
    "042463e9ca7cd4c7eb5a",
    "ed04a34363f248900c18",
    "c7cb1e3fc112e8f924fe",
)
TEMPLATE = "Q: Yes or no: {question}\nA: {chain} So the answer is {answer}."
_ANSWER = re.compile(r"answer\s+is\s*:?[\s\"'*(]*(yes|no)\b", re.IGNORECASE)
_PREFIX = "Yes or no: "


@dataclass(frozen=True)
class Example:
    question: str
    chain: str
    answer: str

    def __str__(self) -> str:
        return TEMPLATE.format(question=self.question, chain=self.chain, answer=self.answer)


@dataclass(frozen=True)
class StrategyQA:
    name: str
    items: Sequence[Item]
    max_new_tokens: int
    files: tuple[DataFile, ...]
    split: str
    shots: int
    excluded: int
    metrics: tuple[str, ...] = ("accuracy",)
    stop: tuple[str, ...] = ("\nQ:", "\n\n")

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        return [{"accuracy": answer_of(text) == item.gold} for item, text in zip(items, texts, strict=True)]

    def ceiling(self) -> None:
        return None

    def question(self, prompt: str) -> str:
        return prompt.rpartition("Q:")[2].removesuffix("\nA:").strip()

    def describe(self) -> dict[str, Any]:
        return {
            "grader": "the last 'answer is yes' or 'answer is no' of the text",
            "data": [file.describe() for file in self.files],
            "split": self.split,
            "shots": self.shots,
            "excluded": f"{self.excluded} questions that are worked examples",
            "template": TEMPLATE,
        }


def answer_of(text: str) -> str | None:
    """ "yes", "no", or None where the text says neither."""
    found = _ANSWER.findall(text)
    return found[-1].lower() if found else None


def make(name: str, options: TaskOptions) -> StrategyQA:
    if options.data is None:
        records, file = from_hub("tasksource/strategy-qa", None, "train")
    else:
        records, file = read_lines(options.data, "strategyqa_train_2290.jsonl.gz")
    files = (file,)
    if options.exemplars is None:
        examples = _own_examples(records)
    else:
        examples, source = read_examples(options.exemplars)
        files = (file, source)
    shown = {example.question for example in examples}
    scored = [record for record in records if _plain(record["question"]) not in shown]
    made = [_item(record, examples) for record in scored]
    split = "all"
    if options.split != "test":
        tuning, report = halves(made, [item.id for item in made])
        made, split = (tuning, "a seeded half") if options.split == "tuning" else (report, "the other half")
    items = subset(made, options.limit, [item.id for item in made])
    return StrategyQA(
        name, items, options.max_new_tokens or 128, files, split, len(examples), excluded=len(records) - len(scored)
    )


def _item(record: dict[str, Any], examples: Sequence[Example]) -> Item:
    shots = "\n\n".join(map(str, examples))
    prompt = f"{shots}\n\nQ: {_PREFIX}{_plain(record['question'])}\nA:"
    return Item(f"strategyqa/{record['qid']}", prompt, "yes" if record["answer"] else "no")


def _own_examples(records: Sequence[dict[str, Any]]) -> list[Example]:
    by_id = {record["qid"]: record for record in records}
    missing = [name for name in EXAMPLES if name not in by_id]
    if missing:
        raise ValueError(f"the data lacks the question {missing[0]}, a worked example: give others by --exemplars FILE")
    return [_own_example(by_id[name]) for name in EXAMPLES]


def _own_example(record: dict[str, Any]) -> Example:
    chain = " ".join(fact.strip().rstrip(".") + "." for fact in record["facts"])
    return Example(_plain(record["question"]), chain, "yes" if record["answer"] else "no")


def read_examples(path: Path) -> tuple[list[Example], DataFile]:
    if not path.is_file():
        raise ValueError(f"--exemplars {path}: there is no such file")
    raw = path.read_bytes()
    try:
        records = json.loads(raw)
        examples = [Example(_plain(r["question"]), r["chain"].strip(), r["answer"].strip().lower()) for r in records]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'{path}: needs a JSON list of {{"question", "chain", "answer"}} ({error})') from error
    wrong = [example.answer for example in examples if example.answer not in ("yes", "no")]
    if wrong:
        raise ValueError(f'{path}: the answer {wrong[0]!r} must be "yes" or "no"')
    return examples, fingerprint(path.name, raw, len(examples))


def _plain(question: str) -> str:
    return question.strip().removeprefix(_PREFIX).strip()
