"""How fast methods are beside greedy: run by themselves, taking turns batch by batch, so that they share what the machine does.

Answers for other elements may have been made at any time, and their timings are not comparable; these are. `loopcd bench`
measures speed more thoroughly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from loopcd.analysis.laboratory import GREEDY, Laboratory
from loopcd.evaluation.evaluate import begin, default_folder, make_manifest
from loopcd.evaluation.plan import MethodSpec, Run, RunPlan
from loopcd.evaluation.runner import run_all
from loopcd.evaluation.store import StoreError, open_store
from loopcd.evaluation.table import Estimate

BATCH, BATCHES = 16, 6
NOTE = (
    f"Speed: tokens per second relative to greedy, in batches of at most {BATCH} that all methods take turns on; the median "
    "over the batches, and the lowest and highest of them in place of an interval."
)


def relative_speeds(lab: Laboratory, methods: Mapping[str, MethodSpec]) -> dict[str, Estimate]:
    """By the names of `methods`, which hold greedy."""
    engine = replace(lab.engine, batch_size=min(BATCH, lab.engine.batch_size))
    items = min(len(lab.task().items), engine.batch_size * BATCHES)
    task = replace(lab.session, limit=items).make_task()
    plan = RunPlan(tuple(dict.fromkeys((GREEDY, *methods.values()))))
    manifest = make_manifest(task, engine, plan)
    folder = lab.cache / f"speed-{default_folder(manifest).name}"
    with open_store(folder, lab.cache) as store:
        begin(store, manifest)
        run_all(task, engine, plan, store, lab.tally.stage(f"speed of {', '.join(methods)}"))
        timed = [line for line in store.timings() if line["tokens"] and line["seconds"]]
    rates = {(line["run"], line["batch"]): line["tokens"] / line["seconds"] for line in timed}
    return {name: _relative(rates, Run(spec, None).slug, folder) for name, spec in methods.items()}


def _relative(rates: Mapping[tuple[str, int], float], run: str, folder: Path) -> Estimate:
    base = Run(GREEDY, None).slug
    ratios = [rate / rates[base, batch] for (name, batch), rate in rates.items() if name == run and (base, batch) in rates]
    if not ratios:
        raise StoreError(f"{folder}/timing.jsonl has lost the times of {run}: remove this folder, and run it again")
    return Estimate(median(ratios), min(ratios), max(ratios))
