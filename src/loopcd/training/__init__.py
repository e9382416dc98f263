"""Training of looped models: recipes, objectives, a resumable trainer, and what makes a model card. `train` is the way in."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path

import torch

from loopcd.training.card import install, install_early, install_trajectory, write_card
from loopcd.training.curves import draw_curves
from loopcd.training.figures import Extent, measure_figures
from loopcd.training.progress import Display
from loopcd.training.recipes import RECIPES, recipe_named
from loopcd.training.tokenizer import build_tokenizer
from loopcd.training.trainer import Pace, Trainer
from loopcd.training.trajectory import Plan, plan_of, run_trajectory

__all__ = [
    "RECIPES",
    "Extent",
    "Pace",
    "Plan",
    "add_trajectory",
    "build_tokenizer",
    "draw_curves",
    "make_card",
    "recipe_named",
    "run_trajectory",
    "train",
]


def train(
    recipe: str,
    out: str | Path,
    *,
    minutes: float | None = None,
    resume: bool = False,
    seed: int = 0,
    threads: int | None = None,
    trajectory: bool = False,
    compiled: bool = True,
    quiet: bool = False,
) -> Path:
    """Train a recipe by name into the folder `out`; gives the folder of the finished model.

    `minutes` compresses the schedule to that time. `resume` continues a run that was interrupted. `trajectory` runs the
    experiment of `Plan` instead (several seeds, measured along training; always resumable) and gives its measurements.
    """
    if minutes is not None and not 0 < minutes < inf:
        raise ValueError(f"minutes must be above 0, got {minutes}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if recipe not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads is not None:
        torch.set_num_threads(threads)
    if trajectory:
        return run_trajectory(plan_of(recipe), out, quiet, compiled)
    tokenizer = build_tokenizer()
    trainer = Trainer(recipe_named(recipe, tokenizer), tokenizer, Path(out), Pace(minutes=minutes), seed, compiled)
    with Display(recipe, quiet) as display:
        model = trainer.run(resume, display)
        _draw(Path(out), display)
    return model


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


def _draw(run: Path, display: Display) -> None:
    try:
        display.say(f"curves: {draw_curves(run, run / 'curves.png')}")
    except ImportError as error:  # pictures are an extra; the log is there without
        display.say(str(error))
