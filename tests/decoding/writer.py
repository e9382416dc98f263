"""A model that writes a given text."""

from itertools import pairwise
from typing import Any

import torch

from loopcd.models import LoopedModel
from tools import EOS, byte_tokenizer, tiny_ouro


def writing(text: str) -> tuple[LoopedModel, Any]:
    """A model that continues any one-token prompt "~" by this text of different bytes: a chain of bytes in its head."""
    tokenizer = byte_tokenizer()
    model = tiny_ouro(0, hidden_size=260, num_attention_heads=1, head_dim=260, num_key_value_heads=1)
    order = [*tokenizer("~" + text).input_ids, EOS]
    assert len(set(order)) == len(order)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(260)[:259])
        for layer in model.model.layers:  # layers that add nothing
            layer.input_layernorm_2.weight.zero_()  # pyright: ignore
            layer.post_attention_layernorm_2.weight.zero_()  # pyright: ignore
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        for before, after in pairwise(order):
            model.lm_head.weight[after, before] = 1.0
    return model, tokenizer
