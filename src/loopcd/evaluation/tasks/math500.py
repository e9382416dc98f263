"""MATH-500 as lm-eval runs it (minerva_math500): four Minerva shots; strict is its exact match, flex math_verify."""

from __future__ import annotations

from loopcd.evaluation.data import from_hub, halves, read_lines, subset
from loopcd.evaluation.harness import HarnessTask, load_definition, prompts_of
from loopcd.evaluation.task import Item, TaskOptions

SHOTS = 4
READINGS = {"strict": ("none", "exact_match"), "flex": ("none", "math_verify")}


def make(name: str, options: TaskOptions) -> HarnessTask:
    if options.data is None:
        records, file = from_hub("HuggingFaceH4/MATH-500", None, "test")
    else:
        records, file = read_lines(options.data, "math500.jsonl")
    wanted = [{"problem": record["problem"], "solution": record["solution"]} for record in records]
    definition = load_definition("minerva_math/minerva_math500.yaml", SHOTS, {"test": wanted})
    made = [
        Item(f"math500/{number}", prompt, document["answer"], document)
        for number, (document, prompt) in enumerate(prompts_of(definition, SHOTS))
    ]
    split = "test"
    if options.split != "test":
        tuning, report = halves(made, [item.id for item in made])
        made, split = (tuning, "a seeded half of test") if options.split == "tuning" else (report, "the other half of test")
    return HarnessTask(
        name,
        metrics=tuple(READINGS),
        stop=tuple(definition.config.generation_kwargs["until"]),
        max_new_tokens=options.max_new_tokens or 512,
        items=subset(made, options.limit, [item.id for item in made]),
        readings=READINGS,
        marks=("Problem:", "Solution:"),
        files=(file,),
        split=split,
        shots=SHOTS,
        definition=definition,
    )
