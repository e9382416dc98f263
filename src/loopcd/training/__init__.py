"""Training of looped models: how the built-in ones were made.

`train` below is the way in: it takes a recipe by name (`recipes`), makes rows of word problems (`rows`, `tokenizer`) and
runs the resumable `trainer` with an objective over the loops (`objectives`) and Muon (`optimisers`). `checkpoints` knows the
run's folder, `accuracy` and `curves` what it shows while it runs.
"""

import os
from math import inf
from pathlib import Path

import torch

from loopcd.training.curves import draw_curves
from loopcd.training.recipes import RECIPES, recipe_named
from loopcd.training.tokenizer import build_tokenizer
from loopcd.training.trainer import Display, Pace, Trainer

__all__ = ["RECIPES", "train"]


def train(
    recipe: str,
    out: str | Path,
    *,
    minutes: float | None = None,
    resume: bool = False,
    seed: int = 0,
    threads: int | None = None,
    compiled: bool = True,
    quiet: bool = False,
) -> Path:
    """Train a recipe by name into the folder `out`; gives the folder of the finished model.

    `minutes` compresses the schedule to that time. `resume` continues a run that was interrupted.
    """
    if minutes is not None and not 0 < minutes < inf:
        raise ValueError(f"minutes must be above 0, got {minutes}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads is not None:
        torch.set_num_threads(threads)
    tokenizer = build_tokenizer()
    trainer = Trainer(recipe_named(recipe, tokenizer), tokenizer, Path(out), Pace(minutes=minutes), seed, compiled)
    with Display(recipe, quiet) as display:
        model = trainer.run(resume, display)
        try:
            display.say(f"curves: {draw_curves(out, Path(out) / 'curves.png')}")
        except ImportError as error:  # pictures are an extra; the log is there without
            display.say(str(error))
    return model
