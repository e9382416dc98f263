"""Methods on the same problems, with intervals of their paired differences. `python examples/compare_methods.py [PROBLEMS]`"""

import sys

from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.evaluate import evaluate
from loopcd.evaluation.plan import RunPlan, parse_methods
from loopcd.evaluation.task import TaskOptions
from loopcd.evaluation.tasks import make_task

problems = int(sys.argv[1]) if len(sys.argv) > 1 else 200
task = make_task("steps-cue-shift", TaskOptions(limit=problems))
plan = RunPlan(parse_methods("greedy,loopcd,loopcd:strength=0.5,loopguidance"))
found = evaluate(task, LocalEngine.load("tiny-early"), plan)  # answers are kept below results/: a second run goes on
for each in found.results.methods:
    right, versus = each.shares["strict"], each.versus_greedy["strict"]
    print(f"{each.method.label:22} {right.accuracy:6.1%} [{right.low:.1%}, {right.high:.1%}]", end="")
    print(f"   {versus.difference:+6.1%} [{versus.low:+.1%}, {versus.high:+.1%}] against greedy")
