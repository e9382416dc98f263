"""GSM8K as the paper's authors ran it: 1,319 test problems, the first three chain-of-thought examples that lm-eval ships.

Strict takes the N of the first "The answer is N.", flex the last number. lm-eval's own task, with its `####` and random
shots, is `gsm8k-lm-eval`.
"""

from __future__ import annotations

from functools import partial

from loopcd.evaluation.data import DataFile, shuffled_rank
from loopcd.evaluation.graders import THE_ANSWER_IS
from loopcd.evaluation.paper import MAX_NEW_TOKENS
from loopcd.evaluation.task import Item, TaskOptions, limited
from loopcd.evaluation.tasks.harness import FEWSHOT_SEED, harness_task, load_definition, prompts_of, shipped_examples
from loopcd.evaluation.tasks.questions import ReadTask, Records, read_number, read_records

SHOTS = 3
TUNING = 500  # problems of the training split that settings are chosen on
FILES = {"train": "gsm8k_train.jsonl.gz", "test": "gsm8k_test.jsonl"}
TEMPLATE = "Q: {question}\nA: {target}"


def make(name: str, options: TaskOptions) -> ReadTask:
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
    return ReadTask(
        name=name,
        items=limited(made, options),
        max_new_tokens=options.max_new_tokens or MAX_NEW_TOKENS[name],
        files=(file,),
        split=f"{len(chosen)} problems of train" if tuning else "test",
        shots=SHOTS,
        stop=("\n\n", "Q:", "</s>"),
        marks=("Q:", "\nA:"),
        protocol="paper",
        read=partial(read_number, conclusion=THE_ANSWER_IS),
        grader='the first "The answer is N." (strict), the last number (flex)',
        template=TEMPLATE,
        more={"examples": "the first of lm-eval's gsm8k_cot"},
    )


def read_split(options: TaskOptions, split: str) -> tuple[Records, DataFile]:
    """The problems of "train" or "test"."""
    return read_records(options, FILES[split], ("openai/gsm8k", "main", split))


def tuning_split(train: Records) -> tuple[Records, Records]:
    """(the rest, the tuning problems)."""
    order = sorted(range(len(train)), key=lambda number: shuffled_rank(f"gsm8k/train/{number}"))
    chosen = set(order[: min(TUNING, len(train) // 2)])
    tuning = [record for number, record in enumerate(train) if number in chosen]
    return [record for number, record in enumerate(train) if number not in chosen], tuning


READINGS = {"strict": ("strict-match", "exact_match"), "flex": ("flexible-extract", "exact_match")}


def make_lm_evals(name: str, options: TaskOptions) -> ReadTask:
    """lm-eval's own task, with three shots: answers end in `#### N`."""
    (train, train_file), (test, test_file) = read_split(options, "train"), read_split(options, "test")
    tuning = options.split == "tuning"
    if tuning:  # shots come from the rest of the training split
        train, test = tuning_split(train)
    definition = load_definition("gsm8k/gsm8k.yaml", SHOTS, {"train": train, "test": test})
    made = [
        Item(f"{name}/{'tuning' if tuning else 'test'}/{number}", prompt, document["answer"].rpartition("#### ")[2], document)
        for number, (document, prompt) in enumerate(prompts_of(definition, SHOTS))
    ]
    template = definition.config.doc_to_text
    return harness_task(
        definition,
        READINGS,
        name=name,
        items=limited(made, options),
        max_new_tokens=options.max_new_tokens or 256,
        files=(test_file, train_file),
        split=f"{TUNING} problems of train, shots from the others" if tuning else "test, shots from train",
        shots=SHOTS,
        stop=tuple(definition.config.generation_kwargs["until"]),
        marks=("Question:", "Answer:"),
        protocol="lm-eval",
        template=template if isinstance(template, str) else "lm-eval's doc_to_text",
        more={"fewshot_seed": FEWSHOT_SEED},
    )
