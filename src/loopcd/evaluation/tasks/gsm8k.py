"""GSM8K as lm-eval runs it, with the paper's three shots: 1,319 test problems, strict and flexible reading."""

from __future__ import annotations

from loopcd.evaluation.data import DataFile, from_hub, read_lines, shuffled_rank, subset
from loopcd.evaluation.harness import HarnessTask, Records, load_definition, prompts_of
from loopcd.evaluation.task import Item, TaskOptions

SHOTS = 3
TUNING = 500  # problems of the training split that settings are chosen on; they are never shown as shots there
READINGS = {"strict": ("strict-match", "exact_match"), "flex": ("flexible-extract", "exact_match")}


def make(name: str, options: TaskOptions) -> HarnessTask:
    (train, train_file), (test, test_file) = _records(options)
    origin = "test"
    if options.split == "tuning":  # shots come from the rest of the training split
        origin = "tuning"
        train, test = _tuning_split(train)
    definition = load_definition("gsm8k/gsm8k.yaml", SHOTS, {"train": train, "test": test})
    made = [
        Item(f"gsm8k/{origin}/{number}", prompt, document["answer"].rpartition("#### ")[2], document)
        for number, (document, prompt) in enumerate(prompts_of(definition, SHOTS))
    ]
    return HarnessTask(
        name,
        metrics=tuple(READINGS),
        stop=tuple(definition.config.generation_kwargs["until"]),
        max_new_tokens=options.max_new_tokens or 256,
        items=subset(made, options.limit, [item.id for item in made]),
        readings=READINGS,
        marks=("Question:", "Answer:"),
        files=(test_file, train_file),
        split=f"{TUNING} problems of train, shots from the others" if options.split == "tuning" else "test, shots from train",
        shots=SHOTS,
        definition=definition,
    )


def _records(options: TaskOptions) -> tuple[tuple[Records, DataFile], tuple[Records, DataFile]]:
    if options.data is None:
        return from_hub("openai/gsm8k", "main", "train"), from_hub("openai/gsm8k", "main", "test")
    return read_lines(options.data, "gsm8k_train.jsonl.gz"), read_lines(options.data, "gsm8k_test.jsonl")


def _tuning_split(train: Records) -> tuple[Records, Records]:
    """(the rest, the tuning problems)."""
    order = sorted(range(len(train)), key=lambda number: shuffled_rank(f"gsm8k/train/{number}"))
    chosen = set(order[: min(TUNING, len(train) // 2)])
    tuning = [record for number, record in enumerate(train) if number in chosen]
    return [record for number, record in enumerate(train) if number not in chosen], tuning
