"""A whole evaluation: task and engine in, a folder with samples, tables and a report out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from loopcd.evaluation import paper
from loopcd.evaluation.engine import Engine
from loopcd.evaluation.manifest import begin, make_manifest
from loopcd.evaluation.partings import Parting, diverging
from loopcd.evaluation.plan import RunPlan
from loopcd.evaluation.report import as_csv, markdown
from loopcd.evaluation.results import Results, summarise
from loopcd.evaluation.runner import Outcome, Report, run_all
from loopcd.evaluation.store import Store, open_store
from loopcd.evaluation.task import Task
from loopcd.models.presets import Preset

Announce = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Evaluation:
    results: Results
    outcomes: tuple[Outcome, ...]
    examples: tuple[Parting, ...]
    manifest: dict[str, Any]
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / "results.md"


def evaluate(
    task: Task,
    engine: Engine,
    plan: RunPlan,
    out: Path | None = None,
    report: Report | None = None,
    announce: Announce | None = None,
    remark: str = "",
    inside: Path | None = None,
) -> Evaluation:
    """Run what is missing in the folder, then write results.json, .md, .csv and throughput.json there.

    `announce` is handed the manifest before anything is run. `remark` is a sentence that the report begins with, for
    results that need one. `inside` is the folder that `out` is part of, where it is one of several.
    """
    manifest = make_manifest(task, engine, plan)
    folder = out or default_folder(manifest)
    if not folder.exists():
        engine.lengths([item.prompt for item in task.items])  # a model that cannot read them leaves no folder behind
    with open_store(folder, inside) as store:
        begin(store, manifest)
        if announce is not None:
            announce(manifest)
        outcomes = run_all(task, engine, plan, store, report)
        model = manifest["settings"]["model"]["model"]
        results = summarise(task, model, plan.seeds, outcomes, paper_figures(model, task.name, plan, manifest))
        shown = diverging(task, outcomes)
        _write(store, results, store.manifest() or manifest, shown, remark)
    return Evaluation(results, tuple(outcomes), tuple(shown), manifest, folder)


def paper_figures(model: str, task: str, plan: RunPlan, manifest: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the paper reports for these methods, as fractions; only for its own models, benchmarks and settings."""
    found = {}
    for spec in plan.methods:
        if plan.seeds is not None or plan.temperature or not spec.published():
            continue
        used = manifest["settings"]["methods"][spec.label]
        setting = Preset(used["amateur_loop"], used["strength"]) if "amateur_loop" in used else None
        theirs = paper.beside(model, task, spec.name, setting)
        found[spec.label] = {metric: round(figure / 100, 6) for metric, figure in theirs.items()}
    return found


def _write(store: Store, results: Results, manifest: dict[str, Any], examples: Sequence[Parting], remark: str) -> None:
    store.write("results.json", json.dumps(results.as_json(), indent=2, ensure_ascii=False) + "\n")
    store.write("results.csv", as_csv(results))
    store.write("results.md", markdown(results, manifest, examples, remark))
    store.write("throughput.json", json.dumps(results.speeds(), indent=2) + "\n")


def default_folder(manifest: dict[str, Any]) -> Path:
    """The same settings have the same folder, so that the same command goes on."""
    settings = manifest["settings"]
    compared = json.dumps([settings, manifest["versions"]], sort_keys=True, default=str)
    model = re.sub(r"[^\w.-]+", "_", Path(settings["model"]["model"]).name)
    return Path("results") / f"{settings['task']['name']}-{model}-{sha256(compared.encode()).hexdigest()[:8]}"
