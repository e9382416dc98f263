"""GSM8K as lm-eval's own task has it, with three shots: answers end in `#### N`. The paper's GSM8K is `gsm8k`."""

from __future__ import annotations

from loopcd.evaluation.data import subset
from loopcd.evaluation.harness import HarnessTask, load_definition, prompts_of
from loopcd.evaluation.task import Item, TaskOptions
from loopcd.evaluation.tasks.gsm8k import TUNING, read_split, tuning_split

SHOTS = 3
READINGS = {"strict": ("strict-match", "exact_match"), "flex": ("flexible-extract", "exact_match")}


def make(name: str, options: TaskOptions) -> HarnessTask:
    (train, train_file), (test, test_file) = read_split(options, "train"), read_split(options, "test")
    origin = "test"
    if options.split == "tuning":  # shots come from the rest of the training split
        origin = "tuning"
        train, test = tuning_split(train)
    definition = load_definition("gsm8k/gsm8k.yaml", SHOTS, {"train": train, "test": test})
    made = [
        Item(f"{name}/{origin}/{number}", prompt, document["answer"].rpartition("#### ")[2], document)
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
