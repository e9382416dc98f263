"""What a user asked for on the command line, and what is made of it: task, engine, plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loopcd.evaluation.code.bridge import CodeSettings
from loopcd.evaluation.data import log
from loopcd.evaluation.engine import Engine, LocalEngine
from loopcd.evaluation.evaluate import Announce, Evaluation, evaluate
from loopcd.evaluation.plan import RunPlan, parse_seeds
from loopcd.evaluation.registry import TASKS, make_task
from loopcd.evaluation.runner import Report
from loopcd.evaluation.specs import parse_methods
from loopcd.evaluation.sweep import Sweep, sweep, wanted_grids
from loopcd.evaluation.task import Split, Task, TaskOptions
from loopcd.models import LoopedModel


class ModelEngine(Engine, Protocol):
    """An engine that also tells of its model; the weights need not be in this process."""

    @property
    def model(self) -> LoopedModel: ...

    @property
    def num_loops(self) -> int | None: ...


@dataclass(frozen=True)
class Session:
    model: str = "tiny-huginn"
    task: str = "steps"
    methods: str = "greedy,loopcd"
    data: Path | None = None
    exemplars: Path | None = None
    limit: int | None = None
    seeds: str | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    num_loops: int | None = None
    batch_size: int | None = None
    dtype: str | None = None
    device: str | None = None
    allow_code_execution: bool = False
    evalplus_python: str | None = None
    weak_isolation: bool = False
    code_workers: int | None = None
    other_engine: Callable[[Session], ModelEngine] | None = None  # makes another engine than the local one

    def plan(self) -> RunPlan:
        seeds = None if self.seeds is None else parse_seeds(self.seeds)
        plan = RunPlan(parse_methods(self.methods), seeds, self.temperature, self.top_p)
        for spec in plan.methods:
            spec.build()  # a setting out of range is refused before anything is loaded
        return plan

    def make_task(self, split: Split = "test") -> Task:
        code = CodeSettings(self.evalplus_python, self.weak_isolation, self.code_workers)
        allowed = code if self.allow_code_execution else None
        return make_task(self.task, TaskOptions(self.data, split, self.limit, self.max_new_tokens, self.exemplars, allowed))

    def make_engine(self) -> ModelEngine:
        if self.other_engine is not None:
            return self.other_engine(self)
        return LocalEngine.load(self.model, self.dtype, self.device, self.num_loops, self.batch_size)

    def evaluate(self, out: Path | None, report: Report, announce: Announce) -> Evaluation:
        plan, task = self.plan(), self.make_task()
        engine = self.make_engine()
        if plan.seeds is not None and not plan.temperature and not engine.model.has_initial_state:
            log.warning("--seeds: at temperature 0 this model draws nothing, except for noisecd and selfeval")
        return evaluate(task, engine, plan, out, report, announce)

    def sweep(self, out: Path, metric: str | None, paper_practice: bool, report: Report, announce: Announce) -> Sweep:
        if self.seeds is not None or self.temperature:
            raise ValueError("a sweep is run without seeds and temperature: choose the setting first, then run `loopcd eval`")
        methods = self.plan().methods
        if self.task not in TASKS:
            self.make_task()  # says which tasks there are
        engine = self.make_engine()
        loops = engine.num_loops or engine.model.num_loops
        grids = wanted_grids(methods, engine.model.config.model_type, loops, engine.model.has_initial_state)
        return sweep(self.make_task, engine, grids, out, metric, paper_practice, report, announce)
