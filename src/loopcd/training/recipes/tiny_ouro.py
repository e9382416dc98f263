"""tiny-ouro: Ouro's architecture and first-stage objective, two layers looped four times, a trained exit gate."""

from __future__ import annotations

import torch

from loopcd.models import LoopedModel, OuroConfig, OuroForCausalLM
from loopcd.training.objectives import ExpectedExit
from loopcd.training.recipe import Optimiser, Recipe, Text


@torch.no_grad()
def calm_start(model: LoopedModel) -> None:
    """Let a loop begin close to the identity, so that what the embedding says survives four of them.

    With all norms at 1, each half of a layer adds as much as the normed state itself holds, and an embedding of the usual
    0.02 is drowned in the first loop: in a trial the loops after the first then made things worse.
    """
    assert isinstance(model, OuroForCausalLM)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    for name, parameter in model.named_parameters():
        if name.endswith("layernorm_2.weight"):
            parameter.fill_(0.3)


def recipe(vocabulary: int, end: int, padding: int) -> Recipe:
    config = OuroConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        total_ut_steps=4,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Recipe(
        name="tiny-ouro",
        architecture=OuroForCausalLM,
        config=config,
        objective=ExpectedExit(entropy=0.05),
        tokens=3_600_000,
        text=Text(),
        optimiser=Optimiser(),
        prepare=calm_start,
        description="Ouro's architecture, 2 layers x 4 loops, width 128, trained exit gate",
    )
