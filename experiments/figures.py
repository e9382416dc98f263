"""The figures of a model card: measured piece by piece, each piece kept in `figures.json` as soon as it is there.

Nothing is measured twice: an interrupted measurement goes on where it stopped. Settings of LoopCD are chosen on the tuning
split by a fixed rule, and measured once on the test split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from experiments.card import install, install_early, install_trajectory, write_card
from experiments.dynamics import dynamics
from experiments.effects import Effect, Setting, effects, grid
from loopcd.decoding import Generation
from loopcd.evaluation.tasks import steps
from loopcd.models import LoopedModel
from loopcd.models.loading import load
from loopcd.tracing.writing import write_whole
from loopcd.training.accuracy import answers, right
from loopcd.training.checkpoints import read_record
from loopcd.training.trainer import Display


@dataclass(frozen=True)
class Extent:
    """How much is measured: problems on the test split, on the tuning split, and answers read for their dynamics."""

    test: int = 2000
    tuning: int = 2000
    read: int = 300


def measure_figures(folder: str | Path, extent: Extent | None = None, quiet: bool = False) -> dict[str, Any]:
    """Measure what is missing in the model folder's `figures.json`, on the variant that it was trained on and related ones."""
    model, tokenizer = load(folder)
    variant = read_record(Path(folder) / "training.json")["recipe"]["text"]["variant"]
    if tokenizer is None:
        raise ValueError(f"folder {folder} holds no tokenizer")
    extent = extent or Extent()
    book = _Book(Path(folder) / "figures.json")
    with Display("figures", quiet) as display:
        for each in steps.related(variant):
            _measure_variant(model, tokenizer, each, extent, book, display)
        book.get(f"dynamics/{variant}", lambda: _dynamics(model, tokenizer, variant, extent.read))
    return book.figures


def make_card(run: str | Path, target: str | Path, extent: Extent | None = None, quiet: bool = False) -> Path:
    """Install the model of a finished run into `target`, measure what is missing of its figures, and write its card."""
    return _measured_card(install(run, target), extent, quiet)


def add_trajectory(trajectory: str | Path, target: str | Path, extent: Extent | None = None, quiet: bool = False) -> Path:
    """Put a finished trajectory into the card of the model in `target`.

    Where there is none yet, that is the checkpoint which the rule picks from the trajectory.
    """
    if not (Path(target) / "config.json").exists():
        install_early(trajectory, target)
    return _measured_card(install_trajectory(trajectory, target), extent, quiet)


def _measured_card(folder: Path, extent: Extent | None, quiet: bool) -> Path:
    measure_figures(folder, extent, quiet)
    return write_card(folder)


class _Book:
    """The file of figures. `get` measures a figure only if the file does not have it."""

    def __init__(self, file: Path):
        self.file = file
        self.figures: dict[str, Any] = read_record(file) if file.exists() else {}

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        if name not in self.figures:
            self.figures[name] = measure()
            write_whole(self.file, json.dumps(self.figures, indent=1) + "\n")
        return self.figures[name]


def _measure_variant(
    model: LoopedModel,
    tokenizer: PreTrainedTokenizerBase,
    variant: str,
    extent: Extent,
    book: _Book,
    display: Display,
) -> None:
    # Problems and greedy answers serve several figures, and are made only if one of these is missing.
    tuning = cache(lambda: steps.problems(variant, "tuning", extent.tuning))
    test = cache(lambda: steps.problems(variant, "test", extent.test))
    greedy = cache(lambda: answers(model, tokenizer, test()))
    accuracy = book.get(f"accuracy/{variant}", lambda: _accuracy(model, tokenizer, test(), greedy()))
    display.say(f"{variant}: right of {accuracy['problems']} by loop {accuracy['right']}")
    tried = book.get(f"grid/{variant}", lambda: _effects(model, tokenizer, tuning(), grid(model)))
    chosen = chosen_setting(tried)
    effect = book.get(f"effect/{variant}", lambda: _effects(model, tokenizer, test(), [chosen], greedy())[0])
    display.say(f"{variant}: LoopCD {chosen} {100 * effect['difference']:+.2f} ± {100 * effect['margin']:.2f} points")


def chosen_setting(tried: Sequence[dict[str, Any]]) -> Setting:
    """The rule: the largest gain on the tuning split; between equals the weaker strength, then the earlier amateur."""

    def rank(effect: dict[str, Any]) -> tuple[float, float, int]:
        setting = effect["setting"]
        return effect["difference"], -setting["strength"], -setting["amateur_loop"]

    return Setting(**max(tried, key=rank)["setting"])


def _dynamics(model: LoopedModel, tokenizer: PreTrainedTokenizerBase, variant: str, number: int) -> dict[str, Any]:
    test = steps.problems(variant, "test", number)
    return asdict(dynamics(model, tokenizer, test, answers(model, tokenizer, test)))


def _accuracy(
    model: LoopedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[steps.Problem],
    greedy: Sequence[Generation],
) -> dict[str, Any]:
    """Right answers by loop, and what changes from each measured loop to the next."""
    early = [loop for loop in (1, 2, 3, 4) if loop < model.num_loops]
    flags = {loop: right(problems, answers(model, tokenizer, problems, num_loops=loop)) for loop in early}
    flags[model.num_loops] = right(problems, greedy)
    changes = {f"{one}>{other}": _changes(flags[one], flags[other]) for one, other in pairwise(flags)}
    return {"problems": len(problems), "right": {str(k): sum(v) for k, v in flags.items()}, "changes": changes}


def _changes(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int]:
    """Wrong to right, right to wrong."""
    pairs = list(zip(before, after, strict=True))
    return pairs.count((False, True)), pairs.count((True, False))


def _effects(
    model: LoopedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[steps.Problem],
    settings: Sequence[Setting],
    greedy: Sequence[Generation] | None = None,
) -> list[dict[str, Any]]:
    return [_told(effect) for effect in effects(model, tokenizer, problems, settings, greedy)]


def _told(effect: Effect) -> dict[str, Any]:
    told = {"difference": effect.difference, "margin": effect.margin, "mcnemar_p": effect.mcnemar_p}
    return {**asdict(effect), **told}
