"""MATH-500 as the paper's authors ran it: 500 problems, the four Minerva examples and the grading of lm-eval's minerva_math500.

The prompt is lm-eval's but for one character: a newline, not a space, stands between "Solution:" and a worked solution.
"""

from __future__ import annotations

from loopcd.evaluation.data import from_hub, halves, read_lines, subset
from loopcd.evaluation.harness import HarnessTask, documents_of, load_definition, shipped_examples
from loopcd.evaluation.task import Item, TaskOptions

SHOTS = 4
YAML = "minerva_math/minerva_math500.yaml"
READINGS = {"strict": ("none", "exact_match"), "flex": ("none", "math_verify")}
TEMPLATE = "Problem:\n{problem}\n\nSolution:\n{solution}\n\n"


def make(name: str, options: TaskOptions) -> HarnessTask:
    if options.data is None:
        records, file = from_hub("HuggingFaceH4/MATH-500", None, "test")
    else:
        records, file = read_lines(options.data, "math500.jsonl")
    wanted = [{"problem": record["problem"], "solution": record["solution"]} for record in records]
    definition = load_definition(YAML, SHOTS, {"test": wanted})
    shots = "".join(TEMPLATE.format(**example) for example in shipped_examples(YAML, SHOTS))
    made = [
        Item(f"{name}/{number}", f"{shots}Problem:\n{document['problem']}\n\nSolution:", document["answer"], document)
        for number, document in enumerate(documents_of(definition))
    ]
    split = "test"
    if options.split != "test":
        tuning, report = halves(made, [item.id for item in made])
        made, split = (tuning, "a seeded half of test") if options.split == "tuning" else (report, "the other half of test")
    return HarnessTask(
        name,
        metrics=tuple(READINGS),
        stop=("Problem:",),
        max_new_tokens=options.max_new_tokens or 512,
        items=subset(made, options.limit, [item.id for item in made]),
        readings=READINGS,
        marks=("Problem:", "Solution:"),
        files=(file,),
        split=split,
        shots=SHOTS,
        definition=definition,
        protocol="paper",
        template=TEMPLATE,
    )
