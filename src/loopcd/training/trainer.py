"""The training loop: a recipe, a seed and a folder in; a model, a log and its curves out. Resumable at any step."""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from threading import current_thread, main_thread

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from loopcd.evaluation.tasks import steps
from loopcd.models import LoopedModel
from loopcd.training.accuracy import answers, right
from loopcd.training.checkpoints import Position, RunFolder
from loopcd.training.optimisers import Optimisers, rate_at
from loopcd.training.recipes import Recipe
from loopcd.training.rows import RowMaker, TextBatch, pool_of_batches


@dataclass(frozen=True)
class Pace:
    """How long a run takes and how often it reports.

    minutes          at most so long (the schedule is compressed to fit); None: as many tokens as the recipe says
    log_every        steps between lines of the log
    save_every       seconds between saved states
    measure_every    seconds between measurements of accuracy on the tuning split; None: only at the end
    measured         problems in such a measurement
    snapshots        tokens at which a snapshot of the model is kept
    """

    minutes: float | None = None
    log_every: int = 50
    save_every: float = 120.0
    measure_every: float | None = 600.0
    measured: int = 150
    snapshots: tuple[int, ...] = ()


class Trainer:
    def __init__(
        self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, out: Path, pace: Pace, seed: int = 0, compiled: bool = True
    ):
        self.recipe, self.tokenizer, self.pace, self.seed = recipe, tokenizer, pace, seed
        self.folder = RunFolder(out)
        self.rows = RowMaker(recipe.text, tokenizer, seed)
        torch.manual_seed(seed)
        self.model = recipe.initial_model()
        # Generation needs many shapes: it runs on a copy whose layers are not compiled.
        self.plain = copy.deepcopy(self.model).eval()
        if compiled:
            compile_layers(self.model)
        self.optimisers = Optimisers(self.model, recipe.optimiser)
        self.position = Position(equations=recipe.text.equations_early)
        self.whole = True  # weights and position belong together; not so in the midst of an update
        self.recent: list[float] = []

    def run(self, resume: bool, display: Display) -> Path:
        """Train to the end, from the saved state if `resume`. Gives the folder of the model."""
        path, begun = self.folder.path, self.folder.run_file.exists()
        record = {"seed": self.seed, "minutes": self.pace.minutes, "recipe": self.recipe.record()}
        if resume and not begun:
            raise ValueError(f"out {path} holds no run to resume: name its folder, or begin one without resume")
        path.mkdir(parents=True, exist_ok=True)
        if resume:
            self.folder.check_run(record)
        if resume and self.folder.state_file.exists():  # else it was stopped before there was anything to save
            self.position = self.folder.load_state(self.model, self.optimisers)
            display.say(f"continuing at {self.position.tokens:,} tokens")
        elif self.folder.state_file.exists():
            raise ValueError(f"out {path} holds a run already: resume it (--resume), or choose another folder")
        self.folder.cut_log(self.position.tokens)
        display.say(f"{self.recipe.tokens:,} tokens to read; it can be interrupted at any time, and resumed (--resume)")
        self.folder.write_run(record)
        self.model.train()
        try:
            self._train(display)
        finally:
            self._save_state()
        self._measure(display)
        return self._save_model(self.folder.model)

    @property
    def progress(self) -> float:
        """From 0 to 1, by tokens or by time, whichever is further."""
        by_tokens = self.position.tokens / self.recipe.tokens
        by_time = self.position.seconds / (60 * self.pace.minutes) if self.pace.minutes else 0.0
        return min(1.0, max(by_tokens, by_time))

    def _train(self, display: Display) -> None:
        saved = measured = self.position.seconds
        batches = self._batches()
        while self.progress < 1.0:
            self._step(next(batches))
            if self.position.step % self.pace.log_every == 0:
                self._log(display)
            if self.pace.measure_every and self.position.seconds - measured > self.pace.measure_every:
                measured = self.position.seconds
                self._measure(display)
            if self.position.seconds - saved > self.pace.save_every:
                saved = self.position.seconds
                self._save_state()

    def _batches(self) -> Iterator[TextBatch]:
        """The text from the present position on, which a step moves by a batch."""
        text = self.recipe.text
        while True:
            batches = pool_of_batches(self.rows, self.position.pool, self.position.equations)
            while self.position.batch < len(batches):
                yield batches[self.position.batch]
            equations = text.equations_early if self.progress < 0.5 else text.equations_late
            self.position = replace(self.position, pool=self.position.pool + 1, batch=0, equations=equations)

    def _step(self, batch: TextBatch) -> None:
        started, at = time.monotonic(), self.position
        loss = self.recipe.objective(self.model, batch, Random(f"step/{self.seed}/{at.step}"))
        self._check_finite(loss, "loss")
        loss.backward()
        self._check_finite(self.optimisers.clip(), "norm of the gradients")
        with uninterrupted():
            self.whole = False
            self.optimisers.step(rate_at(self.progress, self.recipe.optimiser))
            done = {"step": at.step + 1, "batch": at.batch + 1, "tokens": at.tokens + batch.tokens.numel()}
            self.position = replace(at, **done, seconds=at.seconds + time.monotonic() - started)
            self.whole = True
            for tokens in self.pace.snapshots:
                if at.tokens < tokens <= self.position.tokens:
                    self._save_model(self.folder.snapshot_at(tokens))
        self.recent.append(loss.item())

    def _check_finite(self, value: Tensor, what: str) -> None:
        if not torch.isfinite(value):
            raise RuntimeError(f"the {what} is {value.item()} at step {self.position.step + 1}: lower the peak rate")

    def _log(self, display: Display) -> None:
        loss = sum(self.recent) / len(self.recent)
        self.recent = []
        at = self.position
        self.folder.append_log({"step": at.step, "tokens": at.tokens, "minutes": at.seconds / 60, "loss": loss})
        display.show(self.progress, loss, at.seconds, at.tokens)

    def _measure(self, display: Display) -> None:
        """Accuracy by loop on the tuning split, to the log and the display."""
        problems = steps.problems(self.recipe.text.variant, "tuning", self.pace.measured)
        model, accuracy = self._synchronised(), dict[int, float]()
        for loop in sorted({1, 2, 3, 4, model.num_loops}):
            accuracy[loop] = sum(right(problems, answers(model, self.tokenizer, problems, num_loops=loop))) / len(problems)
        record = {"tokens": self.position.tokens, "minutes": self.position.seconds / 60}
        self.folder.append_log({**record, "accuracy": accuracy, "problems": len(problems)})
        told = " ".join(f"{loop}:{100 * share:.1f}" for loop, share in accuracy.items())
        display.say(f"{self.position.tokens:,} tokens, accuracy by loop (tuning, {len(problems)}) {told}")

    def _save_state(self) -> None:
        if self.whole:
            with uninterrupted():
                self.folder.save_state(self.model, self.optimisers, self.position)

    def _save_model(self, folder: Path) -> Path:
        self.folder.save_model(self._synchronised(), self.tokenizer, folder)
        return folder

    def _synchronised(self) -> LoopedModel:
        self.plain.load_state_dict(self.model.state_dict())
        return self.plain


def compile_layers(model: LoopedModel) -> None:
    """Compile each layer by itself: layers of a kind share their code, and the number of loops stays free."""
    names = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in names:
            module.compile(dynamic=False)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """An interrupt waits for the end of what is done inside."""
    before = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if before is None:  # no interrupt comes to another thread, and a handler that is not Python's cannot be put back
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


class Display(Progress):
    """What a run shows while it trains: a bar with loss and time left on a terminal, lines elsewhere. On standard error."""

    def __init__(self, title: str, quiet: bool = False):
        console = Console(stderr=True, quiet=quiet, markup=False, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self.training = self.add_task(title, total=1.0, status="")

    def show(self, progress: float, loss: float, seconds: float, tokens: int) -> None:
        left = seconds * (1 - progress) / max(progress, 1e-6) / 60
        status = f"{100 * progress:5.1f} %  loss {loss:.4f}  {tokens / max(seconds, 1e-9):,.0f} tokens/s  {left:.0f} min left"
        self.update(self.training, completed=progress, status=status)
        if self.disable:
            self.say(f"{tokens:>12,} tokens  {status}")

    def say(self, line: str) -> None:
        self.console.print(line)
