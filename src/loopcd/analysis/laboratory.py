"""Where elements get their answers and traces from: made once, kept by their settings, shared between elements.

    CACHE/TASK-MODEL-HASH/   one folder for all that is generated on the same items by the same model: a store of
                             `loopcd.evaluation`, resumable at any moment
        samples/RUN.jsonl    answers of one method, seed
        traces/NAME          traces of greedy's answers

The hash is of all that can change an answer: items, prompts, limits, weights, loops, dtype, batches, temperature, the
methods' defaults, and versions. Another setting has another folder, so nothing stale is ever read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from loopcd.decoding import LoopCD
from loopcd.decoding.registry import METHODS
from loopcd.evaluation import paper
from loopcd.evaluation.engine import LocalEngine, plain, using_threads
from loopcd.evaluation.evaluate import begin, default_folder, library_versions, make_manifest
from loopcd.evaluation.plan import MethodSpec, RunPlan
from loopcd.evaluation.runner import Outcome, Progress, Report, run_all
from loopcd.evaluation.session import Session
from loopcd.evaluation.store import Store, open_store
from loopcd.evaluation.task import Split, Task
from loopcd.evaluation.tasks import CODE_TASKS, steps
from loopcd.models.presets import Preset
from loopcd.tracing import LoopTrace, TraceWriter, Written, read_traces, trace_texts

GREEDY = MethodSpec("greedy")
BEST = 10  # tokens of every loop that traces keep: what Table 1 draws from
PART = 64  # traces in a file: what an interruption costs


@dataclass(frozen=True)
class Wanted:
    """Answers that an element needs: methods on a task, under seeds or not."""

    methods: tuple[MethodSpec, ...]
    task: str | None = None  # the laboratory's own
    split: Split = "test"
    seeds: tuple[int, ...] | None = None
    temperature: float = 0.0


class Tally:
    """Adds up what the stages report, so that the time left is that of everything.

    `expected` answers are known beforehand; more are added as they turn out to be needed.
    """

    def __init__(self, report: Report | None = None, expected: int = 0) -> None:
        self.report = report or (lambda _: None)
        self.expected = expected
        self.stages: dict[str, Progress] = {}

    def stage(self, name: str, planned: bool = False) -> Report:
        """What a stage reports to. Unless it was planned, one that finds everything done has nothing to add."""

        def reported(state: Progress) -> None:
            if planned or state.found < state.total:
                self.stages[name] = state
                done, total, found, seconds = (
                    sum(getattr(each, part) for each in self.stages.values()) for part in ("done", "total", "found", "seconds")
                )
                self.report(Progress(done, max(self.expected, total), found, seconds))

        return reported


@dataclass
class Laboratory:
    session: Session
    engine: LocalEngine
    cache: Path
    tally: Tally = field(default_factory=Tally)
    tuned: bool | None = None  # Table 2: settings chosen on tuning items, or presets; None: the paper's, else chosen
    _tasks: dict[tuple[str, Split], Task] = field(default_factory=dict)

    # -- what is there

    @property
    def loops(self) -> int:
        return self.engine.num_loops or self.engine.model.num_loops

    @property
    def amateur(self) -> int:
        """The preset's amateur loop."""
        return LoopCD().resolve(self.engine.model, self.engine.num_loops)[0]

    @property
    def strength(self) -> float:
        return LoopCD().resolve(self.engine.model, self.engine.num_loops)[1]

    @property
    def published(self) -> Preset | None:
        """LoopCD's setting in the paper's Table 2, where it has this model and task and nothing else was asked for."""
        known = self.tuned is None and self.session.task in paper.SHOWN and self.session.num_loops is None
        if not known or paper.family(self.session.model) is None:
            return None
        return paper.setting(self.session.model, self.session.task)

    @property
    def tunes(self) -> bool:
        """Whether Table 2 chooses each method's setting on tuning items."""
        return self.published is None if self.tuned is None else self.tuned

    def table2_loopcd(self) -> MethodSpec:
        """LoopCD as in the paper's Table 2, or with the preset's setting where that says nothing."""
        return self.loopcd(**vars(self.published)) if self.published else self.loopcd()

    def loopcd(self, **settings: Any) -> MethodSpec:
        """LoopCD with the preset's setting where none is given; spelled out, so that equal settings are one run."""
        given = {"amateur_loop": self.amateur, "strength": self.strength, **settings}
        return MethodSpec("loopcd", tuple(given.items()))

    def task(self, name: str | None = None, split: Split = "test") -> Task:
        """A task by name, the laboratory's own if none is given. Settings are chosen on half as many items as reported."""
        key = (name or self.session.task, split)
        if key not in self._tasks:
            limit = self.session.limit
            wanted = limit if limit is None or split != "tuning" else -(-limit // 2)
            exemplars = self.session.exemplars if key[0] in (self.session.task, "strategyqa") else None
            no_chat = self.session.no_chat and key[0] in CODE_TASKS
            asked = replace(self.session, task=key[0], limit=wanted, exemplars=exemplars, no_chat=no_chat)
            self._tasks[key] = asked.make_task(split)
        return self._tasks[key]

    @property
    def metric(self) -> str:
        """What the paper's ablations report: flex where the task has it."""
        return "flex" if "flex" in self.task().metrics else self.task().metrics[0]

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The tasks of Table 9: the variants of the word problems, or the paper's benchmarks."""
        if self.session.task.startswith("steps"):
            return steps.related(self.session.task)
        coding = CODE_TASKS if self.session.allow_code_execution else ()
        return ("gsm8k", "math500", *coding, "strategyqa")

    # -- answers

    def prepare(self, wanted: Sequence[Wanted]) -> None:
        """Run all that is missing: everything on the same items in one go, methods taking turns batch by batch."""
        together: dict[Wanted, dict[MethodSpec, None]] = {}  # each method once, by the items, seeds and temperature
        for each in wanted:
            place = replace(each, methods=(), task=each.task or self.session.task)
            together.setdefault(place, {}).update(dict.fromkeys(each.methods))
        planned = [
            replace(place, methods=tuple(sorted(methods, key=lambda spec: spec != GREEDY)))  # greedy first
            for place, methods in together.items()
        ]
        self.tally.expected = sum(
            len(each.methods) * len(each.seeds or (0,)) * len(self.task(each.task, each.split).items) for each in planned
        )
        for each in planned:
            self.made(each, planned=True)

    def answers(self, *methods: MethodSpec, **where: Any) -> list[Outcome]:
        """One for each method (and seed, if seeds are given), made now if need be."""
        return self.made(Wanted(methods, **where))

    def made(self, wanted: Wanted, planned: bool = False) -> list[Outcome]:
        task = self.task(wanted.task, wanted.split)
        plan = RunPlan(wanted.methods, wanted.seeds, wanted.temperature)
        with self.opened(task, wanted.temperature) as store:
            return run_all(task, self.engine, plan, store, self.tally.stage(str(wanted), planned))

    @contextmanager
    def opened(self, task: Task, temperature: float = 0.0) -> Iterator[Store]:
        """The folder of all answers to this task's items."""
        manifest = make_manifest(task, self.engine, RunPlan((GREEDY,), None, temperature))
        settings = manifest["settings"]
        del settings["seeds"]
        settings["methods"] = {name: plain(kind()) for name, kind in METHODS.items()}
        settings["methods"]["loopcd"] = self.engine.settings(LoopCD())
        folder = self.cache / default_folder(manifest).name
        with open_store(folder, self.cache) as store:
            begin(store, manifest)
            yield store

    # -- traces of greedy's answers

    def traces(self, split: Split = "test") -> Iterator[LoopTrace]:
        """What every loop said about greedy's answers, in the items' order, each loaded when it is its turn; made now if
        need be, in parts, so that an interruption costs one part."""
        task = self.task(split=split)
        (greedy,) = self.answers(GREEDY, split=split)
        items = [
            Written(item.prompt, ids, text, extra={**item.notes(task.name), "correct": correct})
            for item, ids, text, correct in zip(
                task.items, greedy.token_ids, greedy.texts, greedy.right(task.metrics[0]), strict=True
            )
        ]
        with self.opened(task) as store:
            folder = store.own_folder(f"traces/greedy-amateur{self.amateur}-strength{self.strength:g}-top{BEST}")
            parts = {folder / f"{start:06d}.npz": items[start : start + PART] for start in range(0, len(items), PART)}
            done = found = sum(len(part) for path, part in parts.items() if path.exists())
            report, begun = self.tally.stage(f"traces in {folder}"), time.monotonic()
            report(Progress(done, len(items), found, 0.0))
            for path, part in parts.items():
                if not path.exists():
                    self._trace(part, path)
                    done += len(part)
                    report(Progress(done, len(items), found, time.monotonic() - begun))
            return chain.from_iterable([read_traces(path) for path in parts])

    def _trace(self, part: Sequence[Written], path: Path) -> None:
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        engine = self.engine
        with using_threads(engine.threads), TraceWriter(partial) as writer:
            for trace in trace_texts(
                engine.model,
                engine.tokenizer,
                part,
                amateur_loop=self.amateur,
                strength=self.strength,
                plausibility=LoopCD().plausibility,
                top=BEST,
                num_loops=engine.num_loops,
                batch_size=max(1, engine.batch_size // 4),  # a pass keeps every loop's readout of all tokens
            ):
                writer.add(trace)
        partial.replace(path)

    # -- what readers want to know

    def settings(self) -> dict[str, Any]:
        """Everything that the figures depend on, JSON values only."""
        task, model = self.task(), self.engine.describe()
        weights = "".join(model["weights"].values())[:12]
        return {
            "model": model["model"],
            "loops": self.loops,
            "dtype": model["dtype"],
            "weights_sha256": weights,
            "batch_size": model["batch_size"],
            "task": task.name,
            "protocol": task.protocol,
            "items": len(task.items),
            "max_new_tokens": task.max_new_tokens,
            "amateur_loop": self.amateur,
            "strength": self.strength,
            "plausibility": LoopCD().plausibility,
            "metric": self.metric,
            "versions": library_versions(),
        }
