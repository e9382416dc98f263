"""StrategyQA as the paper's authors ran it: 2,290 yes/no questions, six worked examples, chain of thought.

The examples come from a file, a JSON list of {"question", "chain", "answer"}, and stand in the prompt as they stand there. All
questions are scored, those that serve as examples included. A text that says neither yes nor no is wrong, never guessed at.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loopcd.evaluation.data import DataFile, fingerprint
from loopcd.evaluation.paper import MAX_NEW_TOKENS
from loopcd.evaluation.task import Item, TaskOptions, limited, tuning_half
from loopcd.evaluation.tasks.questions import ReadTask, read_records

EXEMPLARS = "strategyqa_6shot_cot_exemplars.json"
FIELDS = ("question", "chain", "answer")
TEMPLATE = "Q: {question}\nA: {chain} So the answer is {answer}."


def answer_of(text: str) -> str | None:
    """ "yes", "no", or None where the text says neither."""
    lower = text.lower()
    if "thus, yes." in lower:
        return "yes"
    said = lower.partition("answer is")[2].partition(".")[0].strip()
    return said if said in ("yes", "no") else None


def make(name: str, options: TaskOptions) -> ReadTask:
    examples, source = read_exemplars(_exemplars(options))
    records, file = read_records(options, "strategyqa_train_2290.jsonl.gz", ("tasksource/strategy-qa", None, "train"))
    made = [
        Item(
            f"{name}/{record['qid']}",
            "\n\n".join([*examples, f"Q: {record['question']}\nA:"]),
            "yes" if record["answer"] else "no",
        )
        for record in records
    ]
    kept, part = tuning_half(made, options)
    return ReadTask(
        name=name,
        items=limited(kept, options),
        max_new_tokens=options.max_new_tokens or MAX_NEW_TOKENS[name],
        files=(file, source),
        split=part or "all",
        shots=len(examples),
        metrics=("accuracy",),
        stop=("Q:", "\n\n##", "\n"),
        marks=("Q:", "\nA:"),
        protocol="paper",
        read=lambda text, item: {"accuracy": answer_of(text) == item.gold},
        grader='"thus, yes." anywhere, else what stands between the first "answer is" and the next full stop',
        template=TEMPLATE,
    )


def _exemplars(options: TaskOptions) -> Path:
    """The user's file, or the one beside the data."""
    if options.exemplars is not None:
        return options.exemplars
    if options.data is not None and (options.data / EXEMPLARS).is_file():
        return options.data / EXEMPLARS
    raise ValueError(
        f"strategyqa needs worked examples: name a JSON list of {', '.join(FIELDS)} by --exemplars FILE, or lay it beside the "
        f"data as {EXEMPLARS}"
    )


def read_exemplars(path: Path) -> tuple[list[str], DataFile]:
    """The examples, each as it stands in the prompt."""
    if not path.is_file():
        raise ValueError(f"--exemplars {path}: there is no such file")
    raw = path.read_bytes()
    try:
        records = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--exemplars {path} does not hold JSON: {error}") from error
    if not isinstance(records, list) or not records:
        raise ValueError(f"--exemplars {path} must hold a JSON list with at least one example of {', '.join(FIELDS)}")
    examples = [_example(path, place, record) for place, record in enumerate(records)]
    return examples, fingerprint(path.name, raw, len(records), "\n\n".join(examples).encode(), EXEMPLARS)


def _example(path: Path, place: int, record: Any) -> str:
    for field in FIELDS:
        value = record.get(field) if isinstance(record, dict) else None
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"--exemplars {path}: example {place + 1} has no text {field!r}; each needs {', '.join(FIELDS)}")
    if record["answer"] not in ("yes", "no"):
        raise ValueError(
            f"--exemplars {path}: example {place + 1} has the answer {record['answer']!r}; it must be 'yes' or 'no'"
        )
    return TEMPLATE.format(**{field: record[field] for field in FIELDS})
