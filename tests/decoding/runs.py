"""Running a method through transformers' `generate`, greedily unless asked otherwise."""

from typing import Any

import torch
from torch import Tensor

from loopcd.models import LoopedModel


def sharp(model: Any, scale: float = 0.5) -> Any:
    """Random weights with a head sharp enough that some drafts are accepted and some refused."""
    torch.manual_seed(3)
    with torch.no_grad():
        model.lm_head.weight.normal_(0, scale)
    return model.eval()


def run(model: LoopedModel, ids: Tensor, method: Any, mask: Tensor | None = None, count: int = 10, **options: Any) -> Any:
    """`generate`'s detailed output."""
    return model.generate(
        ids,
        attention_mask=mask,
        custom_generate=method,
        max_new_tokens=count,
        return_dict_in_generate=True,
        **{"do_sample": False, **options},
    )


def tokens_of(model: LoopedModel, ids: Tensor, method: Any, **options: Any) -> list[list[int]]:
    """The new tokens of every row."""
    return run(model, ids, method, **options).sequences[:, ids.shape[1] :].tolist()
