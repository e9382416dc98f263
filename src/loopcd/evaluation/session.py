"""What a user asked for on the command line, and what is made of it: task, engine, plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loopcd.evaluation import paper
from loopcd.evaluation.code.bridge import CodeSettings
from loopcd.evaluation.data import log
from loopcd.evaluation.engine import Engine, LocalEngine
from loopcd.evaluation.evaluate import Announce, Evaluation, evaluate
from loopcd.evaluation.plan import MethodSpec, Run, RunPlan, parse_methods, parse_seeds
from loopcd.evaluation.results import Results, summarise
from loopcd.evaluation.runner import Outcome, Report
from loopcd.evaluation.sweep import Sweep, sweep, wanted_grids, wanted_metric
from loopcd.evaluation.task import ELSEWHERE, Item, Split, Task, TaskOptions, chat_of
from loopcd.evaluation.tasks import CODE_TASKS, make_task
from loopcd.models.loading import find, load_tokenizer


@dataclass(frozen=True)
class Session:
    model: str = "tiny-huginn"
    task: str = "steps"
    methods: str = "greedy,loopcd"
    data: Path | None = None
    exemplars: Path | None = None
    no_chat: bool = False
    settings: Literal["paper"] | None = None
    limit: int | None = None
    seeds: str | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    num_loops: int | None = None
    batch_size: int | None = None
    dtype: str | None = None
    device: str | None = None
    allow_pickle: bool = False
    quantize: str | None = None
    allow_code_execution: bool = False
    evalplus_python: str | None = None
    weak_isolation: bool = False
    code_workers: int | None = None
    other_engine: Callable[[Session], Engine] | None = None  # makes another engine than the local one

    def plan(self) -> RunPlan:
        seeds = None if self.seeds is None else parse_seeds(self.seeds)
        plan = RunPlan(self._methods(), seeds, self.temperature, self.top_p)
        for spec in plan.methods:
            spec.build()  # a setting out of range is refused before anything is loaded
        return plan

    def _methods(self) -> tuple[MethodSpec, ...]:
        """With `--settings paper`, LoopCD has Table 2's setting for this model and task where none is given."""
        asked = parse_methods(self.methods)
        if self.settings is None:
            return asked
        own = paper.setting(self.model, self.task)
        if self.num_loops is not None:
            raise ValueError(f"--num-loops {self.num_loops}: with --settings paper all loops of the model are run")
        filled = {"amateur_loop": own.amateur_loop, "strength": own.strength}
        return tuple(spec.filled(filled) if spec.name == "loopcd" else spec for spec in asked)

    def make_task(self, split: Split = "test", graded: bool = True, answered: bool = False) -> Task:
        """`graded=False` only for the items: then no program will be run, and nobody has to allow it. `answered` for texts that
        were made elsewhere, of no model's own form: programs were asked for by a chat, or `--no-chat`."""
        asks_for_programs = self.task in CODE_TASKS
        if self.no_chat and not asks_for_programs:
            raise ValueError(f"--no-chat: only {' and '.join(CODE_TASKS)} have a chat prompt, {self.task} has none")
        chat = None
        if asks_for_programs and not self.no_chat:  # the template is read without weights, whichever engine runs the model
            chat = ELSEWHERE if answered else chat_of(self.model, load_tokenizer(find(self.model, weights=False)))
        settings = CodeSettings(self.evalplus_python, self.weak_isolation, self.code_workers)
        code = settings if self.allow_code_execution or not graded else None
        options = TaskOptions(self.data, split, self.limit, self.max_new_tokens, self.exemplars, code, chat, graded)
        return make_task(self.task, options)

    def prompts(self) -> Iterator[dict[str, Any]]:
        """What each item asks, without the model's weights."""
        task = self.make_task(graded=False)
        for item in task.items:
            gold = item.gold if item.solution is None else item.solution
            limits = {"stop": list(task.stop), "max_new_tokens": task.max_new_tokens}
            yield {"id": item.id, "prompt": item.prompt, **limits, "gold": gold}

    def grade(self, answers: Path) -> Results:
        """The results of texts that were made elsewhere."""
        task = self.make_task(answered=True)
        return grade_answers(task, read_answers(answers, task.items, some=self.limit is not None), answers.name)

    def make_engine(self) -> Engine:
        if self.other_engine is not None:
            if self.quantize is not None:
                raise ValueError(f"--quantize {self.quantize}: only for the local engine")
            return self.other_engine(self)
        where = (self.dtype, self.device, self.num_loops, self.batch_size, self.allow_pickle, self.quantize)
        return LocalEngine.load(self.model, *where)

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
        splits: tuple[Split, ...] = ("test",) if paper_practice else ("tuning", "report")
        tasks = {split: self.make_task(split) for split in splits}  # what is wrong with one is said before weights are loaded
        wanted_metric(tasks[splits[0]], metric)
        engine = self.make_engine()
        loops = engine.num_loops or engine.model.num_loops
        grids = wanted_grids(methods, engine.model.config.model_type, loops, engine.model.has_initial_state)
        return sweep(tasks.__getitem__, engine, grids, out, metric, paper_practice, report, announce)


# -- texts that were made elsewhere, graded like a method's: a file with a JSON line {"id", "text"} for each item


@dataclass(frozen=True)
class _Given(MethodSpec):
    """Stands where a method stands in the results; nothing can be built of it."""

    def __post_init__(self) -> None:
        pass


METHOD = _Given("answers")


def grade_answers(task: Task, texts: Sequence[str], source: str) -> Results:
    """The results of these texts, one an item. `source` stands where the model's name does."""
    grades = task.grade(task.items, texts)
    nothing = tuple(() for _ in texts)
    return summarise(task, source, None, [Outcome(Run(METHOD, None), tuple(texts), nothing, tuple(grades))])


def read_answers(path: Path, items: Sequence[Item], some: bool = False) -> list[str]:
    """The items' texts in the items' order. `some`: the items are a part of the task, and others' answers are left out."""
    if not path.is_file():
        raise ValueError(f"--answers {path}: there is no such file")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"--answers {path} is no text in UTF-8: {error}") from error
    given: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            name, text = _parsed(line, f"--answers {path}, line {number}")
            if name in given:
                raise ValueError(f"--answers {path}, line {number}: {name!r} stands there twice")
            given[name] = text
    known = {item.id for item in items}
    missing, foreign = [item.id for item in items if item.id not in given], [name for name in given if name not in known]
    if foreign and not some:
        raise ValueError(f"--answers {path}: {foreign[0]!r} is no item of this task ({len(foreign)} such ids)")
    if missing:
        raise ValueError(f"--answers {path}: no text for {missing[0]!r} ({len(missing)} of {len(items)} items are missing)")
    if foreign:
        log.warning("--answers %s: %d answers to other items than the asked %d are left out", path, len(foreign), len(items))
    return [given[item.id] for item in items]


def _parsed(line: str, where: str) -> tuple[str, str]:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in ("id", "text")):
        raise ValueError(f'{where} must be {{"id": …, "text": …}}, both texts')
    return found["id"], found["text"]
