"""Recipes small enough for a test."""

from dataclasses import replace
from typing import Any

from loopcd.models import HuginnConfig, OuroConfig
from loopcd.training.recipes import Recipe, Text, recipe_named
from loopcd.training.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()
TEXT = Text(tokens_per_step=512, widths=(64, 136))


def small_recipe(name: str, tokens: int = 3000) -> Recipe:
    recipe = recipe_named(name, TOKENIZER)
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "vocab_size": len(TOKENIZER)}
    if name == "tiny-huginn":
        config = HuginnConfig(
            n_embd=32,
            n_heads=2,
            intermediate_size=64,
            n_layers_in_prelude=1,
            n_layers_in_recurrent_block=1,
            n_layers_in_coda=1,
            mean_recurrence=4,
            block_size=256,
            **ends,
        )
    else:
        config = OuroConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            total_ut_steps=3,
            max_position_embeddings=256,
            **ends,
        )
    return replace(recipe, config=config, text=replace(TEXT, variant=recipe.text.variant), tokens=tokens)
