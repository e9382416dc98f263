"""Weights in int8: a quarter of float32's memory, half of bfloat16's, and less to stream for each token.

Every row of a weight (the weights of one output, or of one token) has a scale of its own: w ≈ scale · q, q from −127 to 127.
The scales are bfloat16, and a row is rounded by the scale as it is kept, so that the scale itself costs nothing. Products take
bfloat16 and are torch's own operator for few rows; for many, the weight is widened for the moment.
"""

import platform
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopcd.models.memory import keep_freed

FEW = 8  # rows up to which the int8 operator is faster than a product with the widened weight
BLOCK = 32  # inputs that the operator takes at a time
SMALLEST = 32  # outputs and inputs of a layer that is worth it
WIDENED = 2**24  # elements of a weight that are widened at once


@lru_cache(maxsize=1)
def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself; elsewhere each product is made of conversions and is far slower."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # not in every torch
        return any(getattr(torch.cpu, name, lambda: False)() for name in asked)
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """q [rows, inputs] int8 and the rows' scales [rows] bfloat16."""
    largest = weight.detach().abs().amax(dim=1).float() / 127
    scales = torch.where(largest > 0, largest, 1.0).bfloat16()
    q = (weight.detach().float() / scales.float()[:, None]).round().clamp(-127, 127)  # a scale rounded down asks for more
    return q.to(torch.int8), scales


class Int8Linear(nn.Module):
    """A linear layer of rounded weights; inputs and outputs are bfloat16."""

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)  # [outputs, inputs] int8
        self.register_buffer("scales", scales)  # [outputs]
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        fits = x.is_cpu and x.dtype == torch.bfloat16 and self.in_features % BLOCK == 0
        if fits and 0 < len(rows) <= FEW and not x.requires_grad and not torch.compiler.is_compiling():
            y = torch._weight_int8pack_mm(rows, self.weight, self.scales)  # pyright: ignore[reportPrivateImportUsage]
        else:
            y = self._widened(rows)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def _widened(self, rows: Tensor) -> Tensor:
        # −127 to 127 are exact in bfloat16; where the processor has no units for it, float32 is faster
        dtype = torch.float32 if rows.is_cpu and not has_bfloat16() else rows.dtype
        parts = self.weight.split(max(1, WIDENED // self.in_features))
        y = torch.cat([F.linear(rows.to(dtype), part.to(dtype)) for part in parts], dim=-1)
        return (y * self.scales).to(rows.dtype)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """[..., inputs], the weights of some outputs."""
        index = index.to(self.weight.device)
        return self.weight[index].to(dtype) * self.scales[index].to(dtype)[..., None]


class Int8Embedding(nn.Module):
    """Embeddings of rounded weights, looked up as bfloat16."""

    weight: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight).to(self.scales.dtype) * F.embedding(ids, self.scales[:, None])


@torch.no_grad()
def to_int8(model: Any) -> None:
    """Round the weights of a model's linear layers and of its embeddings, one after the other; all else becomes bfloat16."""
    keep_freed()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    kept = rounded(embedding.weight)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if layer is embedding:
                setattr(parent, name, Int8Embedding(*kept))
            elif type(layer) is nn.Linear and min(layer.weight.shape) >= SMALLEST:
                weights = kept if tied and layer is head else rounded(layer.weight)
                setattr(parent, name, Int8Linear(*weights, layer.bias))
    model.to(torch.bfloat16)
    model.quantized = "int8"


def int8_bytes(model: Any) -> int:
    """What the weights of a model take once they are rounded; the model itself is left as it is."""
    with torch.device("meta"):
        empty = type(model)(model.config)
    to_int8(empty)
    kept = {id(weight): weight.nbytes for weight in empty.state_dict(keep_vars=True).values()}  # tied ones count once
    return sum(kept.values())
