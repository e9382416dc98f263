"""The paper's grids: settings are chosen on one set of items and reported, once, on another.

The paper reports the best setting of each method on the reported items themselves. `paper_practice` does that, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from loopcd.evaluation.engine import Engine
from loopcd.evaluation.evaluate import Announce, Evaluation, evaluate
from loopcd.evaluation.plan import MethodSpec, RunPlan
from loopcd.evaluation.results import BASELINE, Results
from loopcd.evaluation.runner import Report
from loopcd.evaluation.store import StoreError, write_whole
from loopcd.evaluation.table import Estimate, Table, shown
from loopcd.evaluation.task import Split, Task

STRENGTHS = (0.1, 0.2, 0.3)
CAPS = (0.5, 1.0, 1.5)  # of LoopGuidance's adaptive weight, away from the first loop
ENTROPY_THRESHOLDS = (0.5, 1.0, 1.5)
SAMPLING = ((1.0, 0.7), (0.7, 0.9))  # temperature and top_p of SelfEval on a model without an initial state
PRACTICE = (
    "The best setting of each method was chosen on these very items, as the paper does: the figures are too high by an "
    "unknown amount, and the intervals and p-values do not allow for the choice."
)


@dataclass(frozen=True)
class Sweep:
    tuning: Evaluation
    chosen: dict[str, MethodSpec]  # by method
    report: Evaluation
    metric: str
    paper_practice: bool
    folder: Path

    @property
    def page(self) -> Path:
        return self.folder / "sweep.md"

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.report.results.task,
            "model": self.report.results.model,
            "metric": self.metric,
            "paper_practice": self.paper_practice,
            "chosen": {method: spec.label for method, spec in self.chosen.items()},
            "tuning": self.tuning.results.as_json(),
            "report": self.report.results.as_json(),
        }


def amateur_loops(model_type: str, loops: int) -> tuple[int, ...]:
    """The paper's amateurs: 6, 8, 10 of Huginn's 32 loops, 1, 2, 3 of Ouro's four; elsewhere up to the first three."""
    if loops == 32:
        return (6, 8, 10)
    if model_type == "ouro" and loops == 4:
        return (1, 2, 3)
    return tuple(range(1, min(3, max(1, loops // 2)) + 1))


def grid(method: str, model_type: str, loops: int, draws_state: bool) -> list[MethodSpec]:
    """All settings of a method that the paper tries."""
    names, values = {
        "loopcd": (("amateur_loop", "strength"), product(amateur_loops(model_type, loops), STRENGTHS)),
        "loopguidance": (("weight",), product(CAPS)),
        "mti": (("entropy_threshold",), product(ENTROPY_THRESHOLDS)),
        "selfeval": ((), [()]) if draws_state else (("temperature", "top_p"), SAMPLING),
    }.get(method, ((), [()]))
    return [MethodSpec(method, tuple(zip(names, each, strict=True))) for each in values]


def sweep(
    make: Callable[[Split], Task],
    engine: Engine,
    grids: dict[str, list[MethodSpec]],
    out: Path,
    metric: str | None = None,
    paper_practice: bool = False,
    report: Report | None = None,
    announce: Announce | None = None,
) -> Sweep:
    """Run every setting on the tuning items, then the best of each method, once, on the reported ones.

    `make` makes the task of a split. Everything is an ordinary, resumable evaluation in a folder of `out`.
    """
    everything = RunPlan(tuple(spec for specs in grids.values() for spec in specs))
    split: Split = "test" if paper_practice else "tuning"
    first = make(split)
    wanted = wanted_metric(first, metric)
    remark = PRACTICE if paper_practice else "Tuning items: settings are chosen here; the reported figures are in ../report."
    _check_ours(out, paper_practice)
    tuning = evaluate(first, engine, everything, out / split, report, announce, remark, inside=out)
    chosen = {method: best(tuning.results, specs, wanted) for method, specs in grids.items()}
    if paper_practice:
        kept = tuple(each for each in tuning.results.methods if each.method in chosen.values())
        final = replace(tuning, results=replace(tuning.results, methods=kept))
    else:
        remark = "Each method's setting was chosen on other items (../tuning)."
        last = RunPlan(tuple(chosen.values()))
        final = evaluate(make("report"), engine, last, out / "report", report, announce, remark, inside=out)
    made = Sweep(tuning, chosen, final, wanted, paper_practice, out)
    _write(made, grids)
    return made


def wanted_metric(task: Task, metric: str | None) -> str:
    """By which settings are chosen: the task's first, unless another is asked for."""
    if metric is not None and metric not in task.metrics:
        raise ValueError(f"--metric {metric!r}: {task.name} has {', '.join(task.metrics)}")
    return metric or task.metrics[0]


def _check_ours(out: Path, paper_practice: bool) -> None:
    """A folder takes one sweep, and nothing is written among files that are none of a sweep's."""
    allowed = {"test"} if paper_practice else {"tuning", "report"}
    inside = {path.name for path in out.iterdir() if not path.name.endswith(".partial")} if out.is_dir() else set()
    foreign = sorted(inside - allowed - {"sweep.json", "sweep.md"})
    if foreign:
        raise StoreError(f"{out} holds {foreign[0]}, which is none of this sweep's: use another --out")


def best(results: Results, specs: Sequence[MethodSpec], metric: str) -> MethodSpec:
    """The highest accuracy; of equals the first of the grid."""
    accuracies = {each.method: each.shares[metric].accuracy for each in results.methods}
    return max(specs, key=lambda spec: accuracies[spec])


def _write(made: Sweep, grids: dict[str, list[MethodSpec]]) -> None:
    write_whole(made.folder / "sweep.json", json.dumps(made.as_json(), indent=2, ensure_ascii=False) + "\n")
    tuned = made.tuning.results
    shares = {each.method: Estimate.of(each.shares[made.metric]) for each in tuned.methods}
    rows = [
        (spec.label, shown(shares[spec], "percent"), "yes" if spec == made.chosen[method] and len(specs) > 1 else "")
        for method, specs in grids.items()
        for spec in specs
    ]
    told = PRACTICE if made.paper_practice else "Chosen here, reported on other items: report/results.md."
    table = Table.of("", ("setting", made.metric, "chosen"), rows, words=(0, 2)).markdown()
    write_whole(made.page, f"# Settings of {tuned.task}, {tuned.items} items, {tuned.model}\n\n{told}\n\n{table}\n")


def wanted_grids(methods: Sequence[MethodSpec], model_type: str, loops: int, draws_state: bool) -> dict[str, list[MethodSpec]]:
    """A grid for each method; one that was named with settings is run with these only. Greedy is always there."""
    names = [spec.name for spec in methods]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ValueError(f"--methods: {repeated[0]} stands there twice; a sweep chooses among its settings itself")
    grids = {BASELINE: [MethodSpec(BASELINE)]}
    for spec in methods:
        name = spec.label if spec.name == BASELINE else spec.name  # with settings it is a method beside the plain one
        grids[name] = [spec] if spec.given else grid(spec.name, model_type, loops, draws_state)
    return grids
