"""Huginn in vLLM: paged key/value slots for prelude, core loop by loop, and coda; each amateur loop has coda slots of its own.

It starts from the zero state, so that a text depends on its prompt alone.
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors

from loopcd.models.layers import RotaryTable, rotate_neighbours
from loopcd.serving.vllm.layers import Heads, LoopedForCausalLM, Positions, Rotary, Visits, joined
from loopcd.serving.vllm.served import read_served


class HuginnAttention(nn.Module):
    def __init__(self, config: Any, vllm_config: Any, slots: Sequence[int], prefix: str) -> None:
        super().__init__()
        self.heads = Heads(config.n_heads, config.num_key_value_heads, config.head_dim)
        quant = vllm_config.quant_config
        self.Wqkv = QKVParallelLinear(
            config.n_embd,
            config.head_dim,
            self.heads.all,
            self.heads.all_kv,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.Wqkv",
        )
        self.qk_bias = None
        if config.qk_bias:
            self.qk_bias = nn.Parameter(torch.zeros(self.heads.own + self.heads.own_kv, self.heads.size))
            self.qk_bias.weight_loader = self._load_bias  # pyright: ignore[reportAttributeAccessIssue]
        self.proj = RowParallelLinear(config.n_embd, config.n_embd, bias=False, quant_config=quant, prefix=f"{prefix}.proj")
        self.visits = Visits(self.heads, slots, vllm_config, prefix)

    def forward(self, x: Tensor, rotary: Rotary, visit: int) -> Tensor:
        query, key, value = self.Wqkv(x)[0].split(self.heads.widths, dim=-1)
        qk = torch.cat([query, key], dim=-1).unflatten(-1, (-1, self.heads.size))  # [tokens, heads, head_dim]
        if self.qk_bias is not None:
            qk = qk + self.qk_bias
        qk = rotate_neighbours(qk.float(), *rotary).to(value.dtype).flatten(1)
        query, key = qk.split(self.heads.widths[:2], dim=-1)
        return self.proj(self.visits[visit](query, key, value))[0]

    def _load_bias(self, parameter: nn.Parameter, stored: Tensor) -> None:
        """[2, 1, heads, head_dim], of which the first heads + kv_heads rows are used: this rank's queries', then keys' rows."""
        heads, rank = self.heads, get_tensor_model_parallel_rank()
        flat = stored.view(-1, heads.size)
        # where ranks outnumber key/value heads, several share one
        kv_rank = rank * heads.all_kv // get_tensor_model_parallel_world_size() if heads.own_kv == 1 else rank
        query = flat[rank * heads.own :][: heads.own]
        key = flat[heads.all + kv_rank * heads.own_kv :][: heads.own_kv]
        parameter.data.copy_(torch.cat([query, key]))


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
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (RMSNorm(config.n_embd, eps=config.norm_eps) for _ in range(4))
        self.attn = HuginnAttention(config, vllm_config, slots, f"{prefix}.attn")
        self.mlp = HuginnMLP(config, vllm_config, f"{prefix}.mlp")

    def forward(self, x: Tensor, rotary: Rotary, visit: int) -> Tensor:
        x = self.norm_2(self.attn(self.norm_1(x), rotary, visit) + x)
        return self.norm_4(self.mlp(self.norm_3(x)) + x)


@support_torch_compile
class HuginnStack(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.loops, self.scale = config.mean_recurrence, sqrt(config.n_embd)
        self.amateurs = read_served(config, vllm_config.additional_config).amateur_loops
        quant = vllm_config.quant_config
        self.wte = VocabParallelEmbedding(config.vocab_size, config.n_embd, quant_config=quant, prefix=f"{prefix}.wte")
        made = 0

        def layers(name: str, count: int, visits: int) -> nn.ModuleList:
            """`count` layers, each visited `visits` times: the slots of one visit follow each other."""
            nonlocal made
            slots = [range(made + index, made + count * visits, count) for index in range(count)]
            made += count * visits
            return nn.ModuleList(
                HuginnLayer(config, vllm_config, slots[index], f"{prefix}.{name}.{index}") for index in range(count)
            )

        self.prelude = layers("prelude", config.n_layers_in_prelude, 1)
        self.core_block = layers("core_block", config.n_layers_in_recurrent_block, self.loops)
        self.coda = layers("coda", config.n_layers_in_coda, 1 + len(self.amateurs))
        self.adapter = ColumnParallelLinear(
            2 * config.n_embd,
            config.n_embd,
            bias=False,
            gather_output=True,
            quant_config=quant,
            prefix=f"{prefix}.adapter",
        )
        self.ln_f = RMSNorm(config.n_embd, eps=config.norm_eps)
        table = RotaryTable(config.rope_base, config.head_dim, "neighbours")
        self.positions = Positions(table, vllm_config.model_config.max_model_len, torch.float32)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x = (self.wte(input_ids) if inputs_embeds is None else inputs_embeds) * self.scale
        rotary = self.positions(positions)
        for layer in self.prelude:
            x = layer(x, rotary, 0)
        state, readouts = torch.zeros_like(x), []
        for loop in range(1, self.loops + 1):
            state = self.adapter(torch.cat([state, x], dim=-1))[0]
            for layer in self.core_block:
                state = layer(state, rotary, loop - 1)
            if loop in self.amateurs:
                readouts.append(self._readout(state, rotary, 1 + self.amateurs.index(loop)))
        return joined(self._readout(state, rotary, 0), readouts)

    def _readout(self, state: Tensor, rotary: Rotary, visit: int) -> Tensor:
        x = self.ln_f(state)
        for layer in self.coda:
            x = layer(x, rotary, visit)
        return self.ln_f(x)


class HuginnForCausalLM(LoopedForCausalLM):
    ignored = ("freqs_cis",)  # it may have been rounded to bfloat16: it is computed in float32 instead
    embedding = "transformer.wte.weight"

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config)
        self.transformer = HuginnStack(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "transformer"))
        self.add_head(self.transformer.wte, vllm_config, prefix)
