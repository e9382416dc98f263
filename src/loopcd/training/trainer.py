"""The training loop: a recipe, a seed and a folder in; a model, a log and its curves out. Resumable at any step."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
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
        self.recent: list[float] = []

    def run(self, resume: bool, display: Display) -> Path:
        """Train to the end, from the saved state if `resume` and there is one. Gives the folder of the model."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        if resume and self.folder.state_file.exists():
            self.position = self.folder.load_state(self.model, self.optimisers)
            display.say(f"continuing at {self.position.tokens:,} tokens")
        elif self.folder.state_file.exists():
            raise ValueError(f"out {self.folder.path} holds a run already: resume it, or choose another folder")
        self.folder.write_run({"recipe": self.recipe.record(), "seed": self.seed, "minutes": self.pace.minutes})
        self.model.train()
        try:
            self._train(display)
        finally:
            self.folder.save_state(self.model, self.optimisers, self.position)
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
        for batch in self._batches():
            started = time.monotonic()
            before = self.position.tokens
            self._step(batch)
            self.position.seconds += time.monotonic() - started
            for tokens in self.pace.snapshots:
                if before < tokens <= self.position.tokens:
                    self._save_model(self.folder.snapshot_at(tokens))
            if self.position.step % self.pace.log_every == 0:
                self._log(display)
            if self.pace.measure_every and self.position.seconds - measured > self.pace.measure_every:
                measured = self.position.seconds
                self._measure(display)
            if self.position.seconds - saved > self.pace.save_every:
                saved = self.position.seconds
                self.folder.save_state(self.model, self.optimisers, self.position)
            if self.progress >= 1.0:
                return

    def _batches(self) -> Iterator[TextBatch]:
        """The text from the present position on; the position is that of the batch after the one given out."""
        position, text = self.position, self.recipe.text
        while True:
            batches = pool_of_batches(self.rows, position.pool, position.equations)
            while position.batch < len(batches):
                position.batch += 1
                yield batches[position.batch - 1]
            position.pool, position.batch = position.pool + 1, 0
            position.equations = text.equations_early if self.progress < 0.5 else text.equations_late

    def _step(self, batch: TextBatch) -> None:
        random = Random(f"step/{self.seed}/{self.position.step}")
        loss = self.recipe.objective(self.model, batch, random)
        loss.backward()
        self.optimisers.step(rate_at(self.progress, self.recipe.optimiser))
        self.position.step += 1
        self.position.tokens += batch.tokens.numel()
        self.recent.append(loss.item())
        if not torch.isfinite(loss):
            raise RuntimeError(f"the loss is {loss.item()} at step {self.position.step}: lower the peak rate")

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
