"""Huginn in vLLM: paged key/value slots for prelude, core loop by loop, and coda.

Amateurs and expert read out through the same coda slots, the expert last, so that its entries stay: in the pass over a prompt
an amateur sees the prompt by its own entries, at every later token its own entry for that token and the expert's before. All
of them go through the coda's weights together, which therefore are read once.

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
from vllm.forward_context import get_forward_context
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
from loopcd.serving.vllm.layers import Heads, LoopedForCausalLM, Positions, Rotary, Visits, is_eager, joined
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

    def forward(self, x: Tensor, rotary: Rotary, visit: int, readers: int) -> Tensor:
        query, key, value = self.Wqkv(x)[0].split(self.heads.widths, dim=-1)
        qk = torch.cat([query, key], dim=-1).unflatten(-1, (-1, self.heads.size))  # [tokens, heads, head_dim]
        if self.qk_bias is not None:
            qk = qk + self.qk_bias
        qk = rotate_neighbours(qk.float(), *rotary).to(value.dtype).flatten(1)
        query, key = qk.split(self.heads.widths[:2], dim=-1)
        return self.proj(self.visits(visit, query, key, value, readers))[0]

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

    def forward(self, x: Tensor, rotary: Rotary, visit: int = 0, readers: int = 1) -> Tensor:
        x = self.norm_2(self.attn(self.norm_1(x), rotary, visit, readers) + x)
        return self.norm_4(self.mlp(self.norm_3(x)) + x)


@support_torch_compile
class HuginnStack(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.loops, self.scale = config.mean_recurrence, sqrt(config.n_embd)
        self.carried = read_served(config, vllm_config.additional_config).amateur_loops
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
        self.coda = layers("coda", config.n_layers_in_coda, 1)
        self.adapter = ColumnParallelLinear(
            2 * config.n_embd,
            config.n_embd,
            bias=False,
            gather_output=True,
            quant_config=quant,
            prefix=f"{prefix}.adapter",
        )
        self.ln_f = RMSNorm(config.n_embd, eps=config.norm_eps)
        # tokens of a pass that come before the last of a text that is read again after a preemption
        self.settled: Tensor
        settled = torch.zeros(vllm_config.scheduler_config.max_num_batched_tokens, 1, dtype=torch.bool)
        self.register_buffer("settled", settled, persistent=False)
        self.some_settled = bool(self.carried) and not is_eager(vllm_config)  # a fixed graph asks in every pass
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
            x = layer(x, rotary)
        state, early = torch.zeros_like(x), []
        for loop in range(1, self.loops + 1):
            state = self.adapter(torch.cat([state, x], dim=-1))[0]
            for layer in self.core_block:
                state = layer(state, rotary, loop - 1)
            if loop in self.carried:
                early.append(state)
        return self._readouts(state, early, rotary)

    def _readouts(self, last: Tensor, early: list[Tensor], rotary: Rotary) -> Tensor:
        """[tokens, (1 + early) × width], the expert's first, from its latents and the amateurs', each [tokens, width].

        Of a text that is read again an amateur has the last token only: the rest was the expert's when it was made.
        """
        readers = 1 + len(early)
        if self.some_settled:
            early = [torch.where(self.settled[: len(last)], last, each) for each in early]
        x = self.ln_f(torch.cat([*early, last]) if early else last)
        if early:
            rotary = rotary[0].repeat(readers, 1, 1), rotary[1].repeat(readers, 1, 1)
        for layer in self.coda:
            x = layer(x, rotary, 0, readers)
        *amateurs, expert = self.ln_f(x).unflatten(0, (readers, -1)).unbind()
        return joined(expert, amateurs)


class HuginnForCausalLM(LoopedForCausalLM):
    ignored = ("freqs_cis",)  # it may have been rounded to bfloat16: it is computed in float32 instead
    embedding = "transformer.wte.weight"

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config)
        self.transformer = HuginnStack(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "transformer"))
        self.add_head(self.transformer.wte, vllm_config, prefix)

    def forward(self, *inputs: Any, **more: Any) -> Tensor:
        again = self._read_again() if self.resumed and self.carried else []
        if not again:
            return super().forward(*inputs, **more)
        stack, asks = self.stack, self.stack.some_settled
        for first, last in again:
            stack.settled[first:last] = True
        stack.some_settled = True
        try:
            return super().forward(*inputs, **more)
        finally:
            stack.settled.zero_()
            stack.some_settled = asks

    def _read_again(self) -> list[tuple[int, int]]:
        """Where in this pass the texts are, without their last tokens, that were preempted and are read again."""
        metadata = get_forward_context().attn_metadata
        one = next(iter(metadata.values())) if isinstance(metadata, dict) else None
        if one is None or one.max_query_len == 1:
            return []
        bounds = one.query_start_loc.tolist()
        return [(bounds[row], bounds[row + 1] - 1) for row in self.resumed]
