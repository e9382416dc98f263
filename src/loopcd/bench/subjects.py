"""The models that are measured: medium ones with random weights, and variants that make a point."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch

from loopcd.models import HuginnConfig, HuginnForCausalLM, LoopedModel, OuroConfig, OuroForCausalLM

VOCABULARY = 4096


def huginn_medium(vocabulary: int = VOCABULARY, **changes: Any) -> HuginnForCausalLM:
    """2 + 4 × 16 + 2 layers of width 512. The head is a matrix of its own, so that it can be sharpened alone."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "n_embd": 512,
        "n_heads": 8,
        "intermediate_size": 1536,
        "n_layers_in_prelude": 2,
        "n_layers_in_recurrent_block": 4,
        "n_layers_in_coda": 2,
        "mean_recurrence": 16,
        "vocab_size": vocabulary,
        "block_size": 2048,
        "tie_embeddings": False,
    }
    return HuginnForCausalLM(HuginnConfig(**{**fields, **changes})).eval()


def ouro_medium(vocabulary: int = VOCABULARY, **changes: Any) -> OuroForCausalLM:
    """8 layers × 4 loops of width 512."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "total_ut_steps": 4,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
    }
    return OuroForCausalLM(OuroConfig(**{**fields, **changes})).eval()


MEDIUM: dict[str, Callable[..., LoopedModel]] = {"huginn-medium": huginn_medium, "ouro-medium": ouro_medium}


@torch.no_grad()
def disagreeing(model: LoopedModel, seed: int = 0) -> LoopedModel:
    """The model with weights drawn so large that its loops never settle: what an early loop drafts is refused."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.copy_(torch.randn(weight.shape, generator=generator) * 2 / sqrt(weight.shape[1]))
    return model


def random_ids(model: LoopedModel, rows: int, time: int, seed: int = 0) -> torch.Tensor:
    """[rows, time], where the model is"""
    drawn = torch.randint(0, model.config.vocab_size, (rows, time), generator=torch.Generator().manual_seed(seed))
    return drawn.to(model.device)
