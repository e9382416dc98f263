"""Huginn's layers in vLLM: four norms outside the residual sums, q/k biases, positions rotated in neighbouring pairs."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear

from loopcd.models.layers import RotaryTable, rotate_neighbours
from loopcd.serving.vllm.layers import Heads, Norm, Positions, Rotary, Visits


class RavenAttention(nn.Module):
    """The fused projections of all models of Huginn's type; a family says what it does to queries and keys."""

    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__()
        self.heads = heads = Heads(config.n_heads, config.num_key_value_heads, config.head_dim)
        width, quant = config.n_embd, vllm_config.quant_config
        self.Wqkv = QKVParallelLinear(
            width, heads.size, heads.all, heads.all_kv, bias=False, quant_config=quant, prefix=f"{prefix}.Wqkv"
        )
        self.proj = RowParallelLinear(heads.all * heads.size, width, bias=False, quant_config=quant, prefix=f"{prefix}.proj")
        self.visits = Visits(heads, slots, vllm_config, prefix)

    def forward(self, x: Tensor, rotary: Rotary, visit: int, readers: int, kept: Tensor | None) -> Tensor:
        """Of all rows of `x`, or where only some are asked for afterwards, of those in `kept`."""
        query, key, value = self.Wqkv(x)[0].split(self.heads.widths, dim=-1)
        query, key = self.placed(query, key, rotary)
        attended = self.visits(visit, query, key, value, readers)
        return self.proj(attended if kept is None else attended[kept])[0]

    def placed(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, ...]:
        """Queries and keys [tokens, heads × size] with the positions in them."""
        raise TypeError(f"{type(self).__name__} does not say how positions enter")


class HuginnAttention(RavenAttention):
    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__(config, vllm_config, slots, prefix)
        self.qk_bias = None
        if config.qk_bias:
            self.qk_bias = nn.Parameter(torch.zeros(self.heads.own + self.heads.own_kv, self.heads.size))
            self.qk_bias.weight_loader = self._load_bias  # pyright: ignore[reportAttributeAccessIssue]

    def placed(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, ...]:
        qk = torch.cat([query, key], dim=-1).unflatten(-1, (-1, self.heads.size))  # [tokens, heads, head_dim]
        if self.qk_bias is not None:
            qk = qk + self.qk_bias
        return rotate_neighbours(qk.float(), *rotary).to(key.dtype).flatten(1).split(self.heads.widths[:2], dim=-1)

    def _load_bias(self, parameter: nn.Parameter, stored: Tensor) -> None:
        """[2, 1, heads, head_dim], of which the first heads + kv_heads rows are used: this rank's queries', then keys' rows."""
        flat = stored.view(-1, self.heads.size)
        own, own_kv = self.heads.rows
        parameter.data.copy_(torch.cat([flat[own], flat[self.heads.all :][own_kv]]))


class HuginnMLP(nn.Module):
    def __init__(self, config: Any, vllm_config: Any, prefix: str) -> None:
        super().__init__()
        width, inner, quant = config.n_embd, config.intermediate_size, vllm_config.quant_config
        self.fc = MergedColumnParallelLinear(width, [inner] * 2, bias=False, quant_config=quant, prefix=f"{prefix}.fc")
        self.proj = RowParallelLinear(inner, width, bias=False, quant_config=quant, prefix=f"{prefix}.proj")
        self.act = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.act(self.fc(x)[0]))[0]


class HuginnLayer(nn.Module):
    """The sandwich: each norm stands outside the residual sum."""

    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (Norm(config.n_embd, eps=config.norm_eps) for _ in range(4))
        self.attn = HuginnAttention(config, vllm_config, slots, f"{prefix}.attn")
        self.mlp = HuginnMLP(config, vllm_config, f"{prefix}.mlp")

    @staticmethod
    def positions(config: Any, model_config: Any) -> Positions:
        table = RotaryTable(config.rope_base, config.head_dim, "neighbours")
        return Positions(table, model_config.max_model_len, torch.float32)

    def forward(self, x: Tensor, rotary: Rotary, visit: int = 0, readers: int = 1, kept: Tensor | None = None) -> Tensor:
        attended = self.attn(self.norm_1(x), rotary, visit, readers, kept)
        x = self.norm_2(attended + (x if kept is None else x[kept]))
        return self.norm_4(self.mlp(self.norm_3(x)) + x)
