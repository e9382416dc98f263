"""Where elements get their answers and traces from: made once, kept by their settings, shared between elements.

    CACHE/TASK-MODEL-HASH/   one folder for all that is generated on the same items by the same model: a store of
                             `loopcd.evaluation`, resumable at any moment
        samples/RUN.jsonl    answers of one method, seed
        traces/NAME          traces of greedy's answers

The hash is of all that can change an answer: items, prompts, limits, weights, loops, dtype, batches, temperature, the
methods' defaults, and versions. Another setting has another folder, so nothing stale is ever read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopcd.decoding import LoopCD
from loopcd.decoding.registry import METHODS
from loopcd.evaluation import paper
from loopcd.evaluation.engine import LocalEngine, plain
from loopcd.evaluation.evaluate import begin, default_folder, library_versions, make_manifest
from loopcd.evaluation.plan import MethodSpec, RunPlan
from loopcd.evaluation.runner import Outcome, Progress, Report, run_all
from loopcd.evaluation.session import Session
from loopcd.evaluation.store import Store, open_store
from loopcd.evaluation.task import Split, Task
from loopcd.evaluation.tasks import CODE_TASKS, steps
from loopcd.models.presets import Preset

GREEDY = MethodSpec("greedy")


@dataclass(frozen=True)
class Wanted:
    """Answers that an element needs: methods on a task, under seeds or not."""

    methods: tuple[MethodSpec, ...]
    task: str | None = None  # the laboratory's own
    split: Split = "test"
    seeds: tuple[int, ...] | None = None
    temperature: float = 0.0

    @property
    def place(self) -> tuple[str | None, Split, tuple[int, ...] | None, float]:
        return self.task, self.split, self.seeds, self.temperature


@dataclass(frozen=True)
class Answers:
    """One method's answers to all items, in their order."""

    outcome: Outcome
    touched: int  # positions at which the method's rule intervened
    tokens: int

    @property
    def texts(self) -> tuple[str, ...]:
        return self.outcome.texts

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        return self.outcome.token_ids

    def right(self, metric: str) -> list[bool]:
        return [grades[metric] for grades in self.outcome.grades]


class Tally:
    """Adds up what the stages report, so that the time left is that of everything.

    `expected` answers are known beforehand; more are added as they turn out to be needed.
    """

    def __init__(self, report: Report | None = None, expected: int = 0) -> None:
        self.report = report or (lambda _: None)
        self.expected = expected
        self.stages: dict[str, Progress] = {}

    def stage(self, name: str, planned: bool = False) -> Callable[[Progress], None]:
        """What a stage reports to. Unless it was planned, one that finds everything done has nothing to add."""

        def reported(state: Progress) -> None:
            if planned or state.found < state.total:
                self.stages[name] = state
                self.report(self.state())

        return reported

    def state(self) -> Progress:
        states = self.stages.values()
        total = max(self.expected, sum(state.total for state in states))
        done, found = sum(state.done for state in states), sum(state.found for state in states)
        return Progress(done, total, found, sum(state.seconds for state in states))


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
    def family(self) -> str:
        return self.engine.model.config.model_type

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
        known = self.published
        return self.loopcd() if known is None else self.loopcd(known.amateur_loop, strength=known.strength)

    def loopcd(self, amateur: int | None = None, **settings: Any) -> MethodSpec:
        """LoopCD with the preset's setting where none is given; spelled out, so that equal settings are one run."""
        strength = settings.pop("strength", self.strength)
        given = {"amateur_loop": amateur or self.amateur, "strength": strength, **settings}
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
        for place, methods in _merged(wanted).items():
            self._run(Wanted(methods, *place), planned=True)

    def answers(self, *methods: MethodSpec, **where: Any) -> list[Answers]:
        """One for each method (and seed, if seeds are given), made now if need be."""
        return self._run(Wanted(methods, **where))

    def _run(self, wanted: Wanted, planned: bool = False) -> list[Answers]:
        task = self.task(wanted.task, wanted.split)
        plan = RunPlan(wanted.methods, wanted.seeds, wanted.temperature)
        with self.opened(task, wanted.temperature) as store:
            outcomes = run_all(task, self.engine, plan, store, self.tally.stage(str(wanted), planned))
            return [_answers(outcome, store.samples(outcome.run.slug)) for outcome in outcomes]

    def count(self, wanted: Sequence[Wanted]) -> int:
        """Answers in all, for the progress."""
        merged = _merged(wanted).items()
        return sum(len(methods) * len(place[2] or (0,)) * len(self.task(*place[:2]).items) for place, methods in merged)

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


def _merged(wanted: Sequence[Wanted]) -> dict[Any, tuple[MethodSpec, ...]]:
    """Methods by the items, seeds and temperature that they run on, each once; greedy first."""
    found: dict[Any, dict[MethodSpec, None]] = {}
    for each in wanted:
        found.setdefault(each.place, {}).update(dict.fromkeys(each.methods))
    return {place: tuple(sorted(methods, key=lambda spec: spec != GREEDY)) for place, methods in found.items()}


def _answers(outcome: Outcome, lines: dict[str, dict[str, Any]]) -> Answers:
    return Answers(outcome, sum(line["touched"] for line in lines.values()), sum(map(len, outcome.token_ids)))
