"""A whole evaluation: task and engine in, a folder with samples, tables and a report out.

The manifest says everything that may change a text or a grade: a run goes on only under the one that it was begun with.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loopcd.evaluation import paper
from loopcd.evaluation.engine import Engine
from loopcd.evaluation.partings import Parting, diverging
from loopcd.evaluation.plan import RunPlan
from loopcd.evaluation.report import as_csv, markdown
from loopcd.evaluation.results import Results, summarise
from loopcd.evaluation.runner import Outcome, Report, run_all
from loopcd.evaluation.store import MANIFEST, Store, StoreError, open_store
from loopcd.evaluation.task import Item, Task
from loopcd.models.presets import Preset

Announce = Callable[[dict[str, Any]], None]
FORMAT = 1
_ABSENT = object()  # not even None stands there
_LIBRARIES = ("loopcd", "torch", "transformers", "tokenizers")  # what grades is named by the task


@dataclass(frozen=True)
class Evaluation:
    results: Results
    outcomes: tuple[Outcome, ...]
    examples: tuple[Parting, ...]
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
        examples = diverging(task, outcomes)
        store.write("results.json", json.dumps(results.as_json(), indent=2, ensure_ascii=False) + "\n")
        store.write("results.csv", as_csv(results))
        store.write("results.md", markdown(results, store.manifest() or manifest, examples, remark))
        store.write("throughput.json", json.dumps(results.speeds(), indent=2) + "\n")
    return Evaluation(results, tuple(outcomes), tuple(examples), folder)


def paper_figures(model: str, task: str, plan: RunPlan, manifest: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the paper reports for these methods, as fractions; only for its own models, benchmarks and settings."""
    settings, found = manifest["settings"], {}
    as_there = paper.runs_so(model, settings["model"]["loops"], settings["model"]["dtype"]) and paper.asks_so(settings["task"])
    for spec in plan.methods if as_there else ():
        if plan.seeds is not None or plan.temperature or not spec.published():
            continue
        used = settings["methods"][spec.label]
        setting = Preset(used["amateur_loop"], used["strength"]) if "amateur_loop" in used else None
        theirs = paper.beside(model, task, spec.name, setting)
        found[spec.label] = {metric: round(figure / 100, 6) for metric, figure in theirs.items()}
    return found


def default_folder(manifest: dict[str, Any]) -> Path:
    """The same settings have the same folder, so that the same command goes on."""
    settings = manifest["settings"]
    compared = json.dumps([settings, manifest["versions"]], sort_keys=True, default=str)
    model = re.sub(r"[^\w.-]+", "_", Path(settings["model"]["model"]).name)
    return Path("results") / f"{settings['task']['name']}-{model}-{sha256(compared.encode()).hexdigest()[:8]}"


# -- the manifest


def make_manifest(task: Task, engine: Engine, plan: RunPlan) -> dict[str, Any]:
    """`settings` and `versions` must stay the same in a folder; `machine` is only recorded."""
    described = task.describe()
    return {
        "format": FORMAT,
        "settings": {
            "task": {
                "name": task.name,
                "protocol": task.protocol,
                "items": len(task.items),
                "items_sha256": items_hash(task.items),
                "metrics": list(task.metrics),
                "stop": list(task.stop),
                "max_new_tokens": task.max_new_tokens,
                **{key: value for key, value in described.items() if key != "machine"},
            },
            "model": engine.describe(),
            "methods": {spec.label: engine.settings(spec.build()) for spec in plan.methods},
            "seeds": None if plan.seeds is None else list(plan.seeds),
            "temperature": plan.temperature,
            "top_p": plan.top_p,
        },
        "versions": {"python": sys.version.split()[0], **library_versions()},
        "machine": {**engine.machine(), **described.get("machine", {})},
    }


def begin(store: Store, manifest: dict[str, Any]) -> None:
    """Write the manifest into an empty folder; in one with a run, refuse to go on under other settings."""
    before = store.manifest()
    if before is None:
        store.write(MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        return
    parts = ("format", "settings", "versions")
    try:
        changed = list(differences({part: before.get(part) for part in parts}, {part: manifest[part] for part in parts}))
    except RecursionError as error:
        raise StoreError(f"{store.folder}/{MANIFEST} is damaged ({error}): use another folder") from error
    changed.sort(key=lambda difference: "sha256" in difference)  # which says the least
    if changed:
        raise StoreError(
            f"{store.folder} holds a run with other settings: {'; '.join(changed[:4])}"
            f"{f'; and {len(changed) - 4} more' if len(changed) > 4 else ''}. "
            "Run it with the same settings, or use another --out"
        )


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from differences(before.get(key, _ABSENT), now.get(key, _ABSENT), f"{name}.{key}" if name else str(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{name}[{place}]")
    elif before != now:
        yield f"{name.removeprefix('settings.')} was {_shown(before)} and is now {_shown(now)}"


def items_hash(items: Sequence[Item]) -> str:
    return sha256("\n".join(f"{item.id}\t{item.prompt!r}\t{item.gold!r}" for item in items).encode()).hexdigest()


@cache
def library_versions() -> dict[str, str]:
    """Read once: every manifest has them, and each costs a look through the installed packages."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _shown(value: Any) -> str:
    text = "not set" if value is None or value is _ABSENT else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
