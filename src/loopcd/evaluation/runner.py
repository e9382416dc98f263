"""The runner: every item by every method, kept as soon as it is finished, gone on with wherever it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    loops: int = 0  # all loops of all tokens
    touched: int = 0  # positions at which the method's rule intervened
    tokens_per_second: float | None = None  # None: nothing was timed

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids))

    def right(self, metric: str) -> list[bool]:
        return [grades[metric] for grades in self.grades]


def run_all(task: Task, engine: Engine, plan: RunPlan, store: Store, report: Report | None = None) -> list[Outcome]:
    """Generate what is not there yet, grade it, and hand back everything. The store's manifest is that of this plan."""
    finished = {run: _finished(task, run, store) for run in plan.runs}
    _Work(task, engine, plan, store, finished, report or (lambda _: None)).generate()
    speeds = _speeds(store)
    return [_outcome(task, run, store, finished[run], speeds.get(run.slug)) for run in plan.runs]


def _finished(task: Task, run: Run, store: Store) -> dict[str, dict[str, Any]]:
    samples = store.samples(run.slug)
    foreign = samples.keys() - {item.id for item in task.items}
    if foreign:
        raise StoreError(f"{store.folder}/samples/{run.slug}.jsonl holds {min(foreign)}, which is no item of {task.name}")
    return samples


@dataclass(frozen=True)
class _Work:
    task: Task
    engine: Engine
    plan: RunPlan
    store: Store
    finished: dict[Run, dict[str, dict[str, Any]]]  # lines by id
    report: Report

    def generate(self) -> None:
        """A few batches by one method, then by the next: they share what the machine is doing, and pairs are there early."""
        items, runs = self.task.items, self.plan.runs
        total, found = len(items) * len(runs), self._done()
        self.report(Progress(found, total, found, 0.0))
        if found == total:
            return
        planned = batches(self.engine.lengths([item.prompt for item in items]), self.engine.batch_size)
        self.engine.warm_up([items[place].prompt for place in planned[-1]])
        started = time.monotonic()

        def told() -> None:
            self.report(Progress(self._done(), total, found, time.monotonic() - started))

        ahead = {run: self.engine.ahead(run.method.build()) for run in runs}
        most = max(ahead.values())
        for first in range(0, len(planned), most):
            turn = planned[first : first + most]
            for run in runs:
                for start in range(0, len(turn), ahead[run]):
                    batch = [items[place] for part in turn[start : start + ahead[run]] for place in part]
                    missing = [item for item in batch if item.id not in self.finished[run]]
                    if missing:
                        # a text that depends on the others of its batch is made with all of them again
                        self._run_items(run, first + start, missing if ahead[run] > 1 else batch, told)

    def _done(self) -> int:
        return sum(map(len, self.finished.values()))

    def _run_items(self, run: Run, number: int, items: Sequence[Item], told: Callable[[], None]) -> None:
        """Texts are kept as soon as they and all before them have ended, so that a file's order is always the same."""
        finished, ready, kept = self.finished[run], dict[int, Generation](), 0

        def ended(place: int, text: Generation) -> None:
            nonlocal kept
            ready[place] = text
            lines = []
            while kept in ready:
                if items[kept].id not in finished:
                    lines.append(sample_line(items[kept].id, ready[kept]))
                kept += 1
            if lines:
                self.store.add_samples(run.slug, lines)
                finished.update({line["id"]: line for line in lines})
                told()

        task, plan, numbers = self.task, self.plan, tuple(item_number(item.id) for item in items)
        limits = (task.max_new_tokens, task.stop, task.question, numbers, run.seed, plan.temperature, plan.top_p)
        begun = time.perf_counter()
        prompts, method = [item.prompt for item in items], run.method.build()
        made = self.engine.complete(prompts, method, CompletionRequest(*limits, ended=ended))
        seconds = time.perf_counter() - begun
        for place in range(kept, len(made)):  # of an engine that tells nothing before all have ended
            ended(place, made[place])
        tokens = sum(len(each.token_ids) for each in made)
        self.store.add_timing({"run": run.slug, "batch": number, "tokens": tokens, "seconds": seconds})


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
        isinstance(each, dict) and each.keys() >= set(task.metrics) and all(isinstance(told, bool) for told in each.values())
        for each in grades
    )


def _outcome(task: Task, run: Run, store: Store, finished: dict[str, dict[str, Any]], speed: float | None) -> Outcome:
    lines = [finished[item.id] for item in task.items]
    texts = tuple(line["text"] for line in lines)
    grades = store.grades(run.slug)
    if grades is None or not _usable(grades, task):
        grades = task.grade(task.items, texts)
        store.write_grades(run.slug, grades)
    ids = tuple(tuple(line["token_ids"]) for line in lines)
    loops, touched = (sum(line[name] for line in lines) for name in ("loops", "touched"))
    return Outcome(run, texts, ids, tuple(grades), loops, touched, speed)
