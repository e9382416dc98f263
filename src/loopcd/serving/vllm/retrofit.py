"""The layers of retrofitted models in vLLM: Llama's or OLMo's, as the weights' names told when the engine started."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_reduce

from loopcd.models.layers import Llama3Scaling, RotaryTable, rotate_halves
from loopcd.serving.vllm.huginn import HuginnMLP, RavenAttention
from loopcd.serving.vllm.layers import Norm, Positions, Rotary


class RetrofitAttention(RavenAttention):
    """OLMo norms all queries together and all keys, also those on other ranks, before positions enter."""

    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__(config, vllm_config, slots, prefix)
        self.ranks, self.eps = get_tensor_model_parallel_world_size(), config.norm_eps
        self.q_norm = self.k_norm = None
        if config.layers_like == "olmo":
            own, own_kv = self.heads.rows
            self.q_norm, self.k_norm = PartOfNorm(own, self.heads.size), PartOfNorm(own_kv, self.heads.size)

    def placed(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, ...]:
        if self.q_norm is not None and self.k_norm is not None:
            scales = self._scales(query, key)  # [tokens, 2]
            query, key = self.q_norm(query, scales[:, :1]), self.k_norm(key, scales[:, 1:])
        qk = torch.cat([query, key], dim=-1).unflatten(-1, (-1, self.heads.size))  # [tokens, heads, head_dim]
        return rotate_halves(qk.to(rotary[0].dtype), *rotary).to(key.dtype).flatten(1).split(self.heads.widths[:2], dim=-1)

    def _scales(self, query: Tensor, key: Tensor) -> Tensor:
        """Of queries and keys, one over the root of the mean square over all heads: the mean of the ranks' own means."""
        squares = torch.stack([each.float().square().mean(dim=-1) for each in (query, key)], dim=-1)
        if self.ranks > 1:
            squares = tensor_model_parallel_all_reduce(squares) / self.ranks
        return torch.rsqrt(squares + self.eps)


class PartOfNorm(nn.Module):
    """This rank's heads of a norm that goes over all."""

    def __init__(self, rows: slice, size: int) -> None:
        super().__init__()
        self.rows, self.size = rows, size
        self.weight = nn.Parameter(torch.ones((rows.stop - rows.start) * size))
        self.weight.weight_loader = self._load  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return (x.float() * scale).to(x.dtype) * self.weight

    def _load(self, parameter: nn.Parameter, stored: Tensor) -> None:
        parameter.data.copy_(stored.view(-1, self.size)[self.rows].flatten())


class RetrofitLayer(nn.Module):
    """Two norms: before each half as in Llama, or after it and inside the residual sum as in OLMo."""

    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = (Norm(config.n_embd, eps=config.norm_eps) for _ in range(2))
        self.attn = RetrofitAttention(config, vllm_config, slots, f"{prefix}.attn")
        self.mlp = HuginnMLP(config, vllm_config, f"{prefix}.mlp")
        self.norms_first = config.layers_like == "llama"

    @staticmethod
    def positions(config: Any, model_config: Any) -> Positions:
        """OLMo rotates in float32, Llama in the working dtype."""
        scaling = Llama3Scaling.read(config.rope_parameters)
        table = RotaryTable(config.rotary_base, config.head_dim, "halves", scaling)
        dtype = torch.float32 if config.layers_like == "olmo" else model_config.dtype
        return Positions(table, model_config.max_model_len, dtype)

    def forward(self, x: Tensor, rotary: Rotary, visit: int = 0, readers: int = 1, kept: Tensor | None = None) -> Tensor:
        attended = self.attn(self.norm_1(x) if self.norms_first else x, rotary, visit, readers, kept)
        x = x if kept is None else x[kept]
        if self.norms_first:
            x = x + attended
            return x + self.mlp(self.norm_2(x))
        x = x + self.norm_1(attended)
        return x + self.norm_2(self.mlp(x))
