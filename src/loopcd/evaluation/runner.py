"""The runner: every item by every method, kept as soon as it is finished, gone on with wherever it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loopcd.decoding import Generation
from loopcd.evaluation.data import item_number
from loopcd.evaluation.engine import CompletionRequest, Engine
from loopcd.evaluation.plan import Run, RunPlan, batches
from loopcd.evaluation.store import Store, StoreError, sample_line
from loopcd.evaluation.task import Grades, Item, Task

Report = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Items of all methods and seeds together."""

    done: int
    total: int
    found: int  # of these, how many were there already
    seconds: float  # since the start of this process's work


@dataclass(frozen=True)
class Outcome:
    """What one run made of the items, in the items' order."""

    run: Run
    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    grades: tuple[Grades, ...]
    loops: int  # all loops of all tokens
    tokens_per_second: float | None  # None: nothing was timed


def run_all(task: Task, engine: Engine, plan: RunPlan, store: Store, report: Report | None = None) -> list[Outcome]:
    """Generate what is not there yet, grade it, and hand back everything. The store's manifest is that of this plan."""
    finished = {run: _finished(task, run, store) for run in plan.runs}
    _generate(task, engine, plan, store, finished, report or (lambda _: None))
    speeds = _speeds(store)
    return [_outcome(task, run, store, finished[run], speeds.get(run.slug)) for run in plan.runs]


def _finished(task: Task, run: Run, store: Store) -> dict[str, dict[str, Any]]:
    samples = store.samples(run.slug)
    foreign = samples.keys() - {item.id for item in task.items}
    if foreign:
        raise StoreError(f"{store.folder}/samples/{run.slug}.jsonl holds {min(foreign)}, which is no item of {task.name}")
    return samples


def _generate(
    task: Task,
    engine: Engine,
    plan: RunPlan,
    store: Store,
    finished: dict[Run, dict[str, dict[str, Any]]],
    report: Report,
) -> None:
    """A few batches by one method, then by the next: they share what the machine is doing, and pairs are there early."""
    total, found = len(task.items) * len(plan.runs), sum(map(len, finished.values()))
    report(Progress(found, total, found, 0.0))
    if found == total:
        return
    planned = batches(engine.lengths([item.prompt for item in task.items]), engine.batch_size)
    engine.warm_up([task.items[place].prompt for place in planned[-1]])
    started = time.monotonic()

    def told() -> None:
        report(Progress(sum(map(len, finished.values())), total, found, time.monotonic() - started))

    ahead = {run: engine.ahead(run.method.build()) for run in plan.runs}
    most = max(ahead.values())
    for first in range(0, len(planned), most):
        for run in plan.runs:
            for number in range(first, min(first + most, len(planned)), ahead[run]):
                places = [place for batch in planned[number : min(number + ahead[run], first + most)] for place in batch]
                missing = [place for place in places if task.items[place].id not in finished[run]]
                if missing:
                    # a text that depends on the others of its batch is made with all of them again
                    asked = [task.items[place] for place in (missing if ahead[run] > 1 else places)]
                    _run_items(engine, _request(task, plan, run, asked), store, run, number, asked, finished[run], told)


def _request(task: Task, plan: RunPlan, run: Run, items: Sequence[Item]) -> CompletionRequest:
    numbers = tuple(item_number(item.id) for item in items)
    return CompletionRequest(task.max_new_tokens, task.stop, task.question, numbers, run.seed, plan.temperature, plan.top_p)


def _run_items(
    engine: Engine,
    request: CompletionRequest,
    store: Store,
    run: Run,
    number: int,
    items: Sequence[Item],
    finished: dict[str, dict[str, Any]],
    told: Callable[[], None],
) -> None:
    """Texts are kept as soon as they and all before them have ended, so that a file's order is always the same."""
    ready: dict[int, Generation] = {}
    kept = 0

    def ended(place: int, text: Generation) -> None:
        nonlocal kept
        ready[place] = text
        lines = []
        while kept in ready:
            if items[kept].id not in finished:
                lines.append(sample_line(items[kept].id, ready[kept]))
            kept += 1
        if lines:
            store.add_samples(run.slug, lines)
            finished.update({line["id"]: line for line in lines})
            told()

    begun = time.perf_counter()
    made = engine.complete([item.prompt for item in items], run.method.build(), replace(request, ended=ended))
    seconds = time.perf_counter() - begun
    for place, text in enumerate(made):
        if place >= kept:
            ended(place, text)
    tokens = sum(len(each.token_ids) for each in made)
    store.add_timing({"run": run.slug, "batch": number, "tokens": tokens, "seconds": seconds})


def _speeds(store: Store) -> dict[str, float]:
    """Tokens per second of generating, by run. A batch that was made twice counts once, by its last time."""
    by_batch = {(line["run"], line["batch"]): line for line in store.timings()}
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for (run, _), line in by_batch.items():
        tokens[run] = tokens.get(run, 0) + line["tokens"]
        seconds[run] = seconds.get(run, 0.0) + line["seconds"]
    return {run: tokens[run] / seconds[run] for run in tokens if seconds[run] > 0}


def _usable(grades: Any, task: Task) -> bool:
    """Whether these are right or wrong by each metric of each item, whoever wrote them."""
    return len(grades) == len(task.items) and all(
        isinstance(each, dict) and all(isinstance(each.get(metric), bool) for metric in task.metrics) for each in grades
    )


def _outcome(task: Task, run: Run, store: Store, finished: dict[str, dict[str, Any]], speed: float | None) -> Outcome:
    lines = [finished[item.id] for item in task.items]
    texts = tuple(line["text"] for line in lines)
    grades = store.grades(run.slug)
    if grades is None or not _usable(grades, task):
        grades = task.grade(task.items, texts)
        store.write_grades(run.slug, grades)
    ids = tuple(tuple(line["token_ids"]) for line in lines)
    return Outcome(run, texts, ids, tuple(grades), sum(line["loops"] for line in lines), speed)
