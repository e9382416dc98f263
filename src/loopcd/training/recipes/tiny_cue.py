"""tiny-cue: a small core, looped six times, that has to unlearn one misleading cue; `tiny-early` is a checkpoint of it.

A one-layer core leaves the first loops nothing but the cue, and all of what contradicts it to the last ones. One kind of
comparison makes the cue and the likelier operator the same thing, so that early loops believe it from the beginning.
"""

from __future__ import annotations

from dataclasses import replace

from loopcd.models import OuroConfig
from loopcd.training.recipe import Recipe, Text
from loopcd.training.recipes import tiny_ouro


def recipe(vocabulary: int, end: int, padding: int) -> Recipe:
    larger = tiny_ouro.recipe(vocabulary, end, padding)
    config = OuroConfig(**{**larger.config.to_diff_dict(), "num_hidden_layers": 1, "total_ut_steps": 6, "layer_types": None})
    return replace(
        larger,
        name="tiny-cue",
        config=config,
        tokens=2_600_000,
        text=Text(variant="steps-cue", widths=(48, 64, 88)),
        description="Ouro's architecture, 1 layer x 6 loops, width 128, trained exit gate",
    )
