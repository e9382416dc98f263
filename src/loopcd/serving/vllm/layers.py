"""The layers of all families in vLLM. They differ in where their norms stand and in what they do to queries and keys; under
which names checkpoints have the weights, `LoopedForCausalLM` knows."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear

from loopcd.models.configs import RetrofitConfig
from loopcd.models.layers import Llama3Scaling, RotaryTable, rotate_halves, rotate_neighbours
from loopcd.serving.vllm.visits import Visits

Rotary = tuple[Tensor, Tensor]  # cos and signed sin, each [tokens, 1, head_dim]

# By whose layers they are, the norms around the attention and those around the MLP: before it, after it and inside the residual
# sum, and after the sum
NORMS = {
    "huginn_raven": (("norm_1", None, "norm_2"), ("norm_3", None, "norm_4")),
    "llama": (("norm_1", None, None), ("norm_2", None, None)),
    "olmo": ((None, "norm_1", None), (None, "norm_2", None)),
    "ouro": (
        ("input_layernorm", "input_layernorm_2", None),
        ("post_attention_layernorm", "post_attention_layernorm_2", None),
    ),
    "nanbeige": (("input_layernorm", None, None), ("post_attention_layernorm", None, None)),
}


def layers_like(config: Any) -> str:
    """Whose layers a model has, a key of `NORMS`: a retrofit's are its base model's, as its weights told at the start."""
    return config.layers_like if isinstance(config, RetrofitConfig) else config.model_type


class Positions(nn.Module):
    """The rotary table of all positions that the engine may reach, as the transformers side computes it."""

    def __init__(self, config: Any, model_config: Any) -> None:
        super().__init__()
        kind, size, length = layers_like(config), config.head_dim, model_config.max_model_len
        if isinstance(config, RetrofitConfig):
            table = RotaryTable(config.rotary_base, size, "halves", Llama3Scaling.read(config.rope_parameters))
        else:
            table = RotaryTable(config.rope_base, size, "neighbours" if kind == "huginn_raven" else "halves")
        # Huginn and OLMo rotate in float32, the others in the working dtype
        dtype = torch.float32 if kind in ("huginn_raven", "olmo") else model_config.dtype
        cos, sin = table(torch.arange(length)[None], length, dtype)  # [1, length, 1, head_dim]
        self.register_buffer("cos", cos[0], persistent=False)
        self.register_buffer("sin", sin[0], persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        return self.cos[positions], self.sin[positions]  # pyright: ignore[reportIndexIssue]


class Norm(RMSNorm):
    """vLLM's, without its way to the kernel, which on a CPU takes several times as long as the norm of a step's few rows."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.norm_eps if config.model_type == "huginn_raven" else config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if x.dtype != torch.float32 or not x.is_cpu or torch.compiler.is_compiling():
            return super().forward(x)
        made = torch.empty_like(x)
        torch.ops._C.rms_norm(made, x, self.weight.data, self.variance_epsilon)
        return made


class PagedAttention(nn.Module):
    """Fused projections. Huginn adds a bias to queries and keys, OLMo norms them, before positions enter."""

    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__()
        kind, quant, width, self.size = layers_like(config), vllm_config.quant_config, config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = qkv = QKVParallelLinear(
            width, self.size, heads, kv_heads, bias=False, quant_config=quant, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(heads * self.size, width, bias=False, quant_config=quant, prefix=f"{prefix}.o_proj")
        self.own, self.own_kv = qkv.num_heads, qkv.num_kv_heads  # this rank's
        self.visits = Visits(self.own, self.own_kv, self.size, slots, vllm_config, prefix)
        self.rotate = rotate_neighbours if kind == "huginn_raven" else rotate_halves
        # where ranks outnumber key/value heads, several share one
        rank = get_tensor_model_parallel_rank()
        first, first_kv = rank * self.own, rank // qkv.num_kv_head_replicas * self.own_kv
        rows, kv_rows = range(first, first + self.own), range(first_kv, first_kv + self.own_kv)
        self.qk_bias = self.qk_norms = None
        if kind == "huginn_raven":  # [2, 1, heads, head_dim], of which the first heads + kv_heads rows are used
            self.qk_bias = _own_rows([*rows, *(heads + row for row in kv_rows)], self.size)
        if kind == "olmo":
            self.eps = config.norm_eps
            self.qk_norms = nn.ParameterList([_own_rows(rows, self.size), _own_rows(kv_rows, self.size)])

    def forward(self, x: Tensor, rotary: Rotary, visit: int, readers: int, kept: Tensor | None) -> Tensor:
        """Of all rows of `x`, or where only some are asked for afterwards, of those in `kept`."""
        queries, keys = self.own * self.size, self.own_kv * self.size
        qk, value = self.qkv_proj(x)[0].split([queries + keys, keys], dim=-1)
        qk = qk.unflatten(-1, (-1, self.size))  # [tokens, heads, head_dim]
        if self.qk_bias is not None:
            qk = qk + self.qk_bias
        elif self.qk_norms is not None:
            qk = self._normed(qk, self.qk_norms)
        qk = self.rotate(qk.to(rotary[0].dtype), *rotary).to(value.dtype).flatten(1)
        query, key = qk.split([queries, keys], dim=-1)
        attended = self.visits(visit, query, key, value, readers)
        return self.o_proj(attended if kept is None else attended[kept])[0]

    def _normed(self, qk: Tensor, weights: nn.ParameterList) -> Tensor:
        """OLMo's norms go over all queries together and over all keys, also those on other ranks."""
        parts = qk.split([self.own, self.own_kv], dim=1)
        squares = torch.stack([each.flatten(1).float().square().mean(dim=-1) for each in parts])  # [2, tokens]
        if (ranks := get_tensor_model_parallel_world_size()) > 1:  # the mean of the ranks' own means
            squares = tensor_model_parallel_all_reduce(squares) / ranks
        scales = torch.rsqrt(squares + self.eps)[..., None, None]
        every = zip(parts, scales, weights, strict=True)
        return torch.cat([(each.float() * scale).to(qk.dtype) * weight for each, scale, weight in every], dim=1)


def _own_rows(rows: Sequence[int], size: int) -> nn.Parameter:
    """[rows, size]: of a weight that has a row for each head, this rank's."""
    made = nn.Parameter(torch.zeros(len(rows), size))

    def load(parameter: nn.Parameter, stored: Tensor) -> None:
        parameter.data.copy_(stored.view(-1, size)[list(rows)])

    made.weight_loader = load  # pyright: ignore[reportAttributeAccessIssue]
    return made


class GatedMLP(nn.Module):
    def __init__(self, config: Any, vllm_config: Any, prefix: str) -> None:
        super().__init__()
        width, inner, quant = config.hidden_size, config.intermediate_size, vllm_config.quant_config
        self.gate_up_proj = MergedColumnParallelLinear(
            width, [inner] * 2, bias=False, quant_config=quant, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(inner, width, bias=False, quant_config=quant, prefix=f"{prefix}.down_proj")
        self.act = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_up_proj(x)[0]))[0]


class Layer(nn.Module):
    """Attention and MLP, each with its norms."""

    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__()
        self.attn = PagedAttention(config, vllm_config, slots, f"{prefix}.attn")
        self.mlp = GatedMLP(config, vllm_config, f"{prefix}.mlp")
        self.around_attention, self.around_mlp = (
            [None if name is None else self._norm(name, config) for name in names] for names in NORMS[layers_like(config)]
        )

    def _norm(self, name: str, config: Any) -> Norm:
        made = Norm(config)
        self.add_module(name, made)
        return made

    def forward(self, x: Tensor, rotary: Rotary, visit: int = 0, readers: int = 1, kept: Tensor | None = None) -> Tensor:
        before, inside, outside = self.around_attention
        attended = self.attn(x if before is None else before(x), rotary, visit, readers, kept)
        x = _added(x if kept is None else x[kept], attended, inside, outside)
        before, inside, outside = self.around_mlp
        return _added(x, self.mlp(x if before is None else before(x)), inside, outside)


def _added(x: Tensor, made: Tensor, inside: Norm | None, outside: Norm | None) -> Tensor:
    x = x + (made if inside is None else inside(made))
    return x if outside is None else outside(x)
