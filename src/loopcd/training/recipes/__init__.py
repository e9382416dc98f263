"""The recipes by name. A new one is a file with a function `recipe(vocabulary, end, padding)`, named here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from transformers import PreTrainedTokenizerFast

from loopcd.training.recipe import Recipe
from loopcd.training.recipes import tiny_cue, tiny_huginn, tiny_ouro

RECIPES: dict[str, Callable[[int, int, int], Recipe]] = {
    "tiny-huginn": tiny_huginn.recipe,
    "tiny-ouro": tiny_ouro.recipe,
    "tiny-cue": tiny_cue.recipe,
}


def recipe_named(name: str, tokenizer: PreTrainedTokenizerFast, tokens: int | None = None) -> Recipe:
    """The recipe for this tokenizer's vocabulary; `tokens` makes it longer or shorter."""
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert isinstance(end, int) and isinstance(padding, int)
    recipe = RECIPES[name](len(tokenizer), end, padding)
    return recipe if tokens is None else replace(recipe, tokens=tokens)
