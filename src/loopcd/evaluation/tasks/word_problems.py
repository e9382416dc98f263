"""The built-in word problems as a task: `steps` and its variants. Nothing is downloaded; the items are made by seed."""

from __future__ import annotations

from dataclasses import replace

from loopcd.evaluation.data import fingerprint_records
from loopcd.evaluation.task import Item, TaskOptions
from loopcd.evaluation.tasks import steps
from loopcd.evaluation.tasks.questions import ReadTask, read_number

ITEMS = 500  # where no limit is given; a limit may be larger, the generator does not end
LONGEST_ANSWER = 112  # tokens; the longest worked answer of any variant is a little shorter


def make(name: str, options: TaskOptions) -> ReadTask:
    if options.data is not None:
        raise ValueError(f"--data: {name} is made by the package and reads no files")
    split = "tuning" if options.split == "tuning" else "test"
    problems = steps.problems(name, split, ITEMS if options.limit is None else options.limit)
    items = [Item(f"{name}/{split}/{number}", each.prompt, each.gold, each) for number, each in enumerate(problems)]
    source = fingerprint_records(f"made by loopcd: {name}/{split}, seed 0", [each.text for each in problems])
    return ReadTask(
        name=name,
        items=items,
        max_new_tokens=options.max_new_tokens or LONGEST_ANSWER,
        files=(replace(source, known=True),),
        split=split,
        shots=0,
        stop=("Question:",),
        marks=("Question:", "Answer:"),
        protocol="loopcd",
        read=read_number,
        grader="the number after #### (strict), the last number (flex), as in lm-eval's gsm8k",
        template="Question: {question}\nAnswer:",
    )
