"""tiny-huginn: Huginn's architecture and objective, one layer each in prelude, core and coda, twelve loops on average."""

from __future__ import annotations

from loopcd.models import HuginnConfig, HuginnForCausalLM
from loopcd.training.objectives import RecurrentDepth
from loopcd.training.recipe import Optimiser, Recipe, Text


def recipe(vocabulary: int, end: int, padding: int) -> Recipe:
    config = HuginnConfig(
        vocab_size=vocabulary,
        n_embd=128,
        n_heads=4,
        num_key_value_heads=4,
        intermediate_size=384,
        n_layers_in_prelude=1,
        n_layers_in_recurrent_block=1,  # one layer in the core: with two, a trial's loops went unused
        n_layers_in_coda=1,
        mean_recurrence=12,
        block_size=512,
        tie_embeddings=True,
        qk_bias=True,
        norm_eps=1e-6,
        rope_base=50000,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Recipe(
        name="tiny-huginn",
        architecture=HuginnForCausalLM,
        config=config,
        objective=RecurrentDepth(mean_loops=12, spread=0.5, backpropagated=4, noisy_start=0.5),
        tokens=4_000_000,
        text=Text(),
        optimiser=Optimiser(),
        description="Huginn's architecture, 1 prelude + 1 core + 1 coda layer, width 128, 12 loops",
    )
