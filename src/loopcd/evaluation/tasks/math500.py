"""MATH-500 as the paper's authors ran it: 500 problems, the four Minerva examples and the grading of lm-eval's minerva_math500.

The prompt is lm-eval's but for one character: a newline, not a space, stands between "Solution:" and a worked solution.
"""

from __future__ import annotations

from loopcd.evaluation.paper import MAX_NEW_TOKENS
from loopcd.evaluation.task import Item, TaskOptions, limited, tuning_half
from loopcd.evaluation.tasks.harness import documents_of, harness_task, load_definition, shipped_examples
from loopcd.evaluation.tasks.questions import ReadTask, read_records

SHOTS = 4
YAML = "minerva_math/minerva_math500.yaml"
READINGS = {"strict": ("none", "exact_match"), "flex": ("none", "math_verify")}
TEMPLATE = "Problem:\n{problem}\n\nSolution:\n{solution}\n\n"


def make(name: str, options: TaskOptions) -> ReadTask:
    records, file = read_records(options, "math500.jsonl", ("HuggingFaceH4/MATH-500", None, "test"))
    wanted = [{"problem": record["problem"], "solution": record["solution"]} for record in records]
    definition = load_definition(YAML, SHOTS, {"test": wanted})
    shots = "".join(TEMPLATE.format(**example) for example in shipped_examples(YAML, SHOTS))
    made = [
        Item(f"{name}/{number}", f"{shots}Problem:\n{document['problem']}\n\nSolution:", document["answer"], document)
        for number, document in enumerate(documents_of(definition))
    ]
    kept, part = tuning_half(made, options)
    return harness_task(
        definition,
        READINGS,
        name=name,
        items=limited(kept, options),
        max_new_tokens=options.max_new_tokens or MAX_NEW_TOKENS[name],
        files=(file,),
        split=f"{part} of test" if part else "test",
        shots=SHOTS,
        stop=("Problem:",),
        marks=("Problem:", "Solution:"),
        protocol="paper",
        template=TEMPLATE,
    )
