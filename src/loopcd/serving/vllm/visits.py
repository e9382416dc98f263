"""Paged attention for layers that are visited once a loop: vLLM's own, with a key/value slot for each visit."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import maybe_prefix
from vllm.platforms import current_platform


@torch.library.custom_op("loopcd::after", mutates_args=())
def after(x: Tensor, done: Tensor) -> Tensor:
    """`x`, to be computed after `done`: a compiler sees only by such a dependency that entries of a slot are written over."""
    return x.clone()


@after.register_fake
def _(x: Tensor, done: Tensor) -> Tensor:
    return torch.empty_like(x)


class Visits(nn.ModuleList):
    """Paged attention for one layer's weights, with a key/value slot of its own for each time that the layer is visited.

    vLLM knows a slot by the number in its name, and each number may occur once in the model.
    """

    def __init__(self, heads: int, kv_heads: int, size: int, slots: Sequence[int], vllm_config: Any, prefix: str) -> None:
        self.size, self.padding = size, _kernel_size(size) - size
        self.few: FewRows | None = None  # where set, the pass that ended is visited again, by these rows alone
        self.entries: Any = None  # keys and values of that pass, where they are kept
        self.keeps = False
        super().__init__(
            Attention(
                heads,
                size + self.padding,
                size**-0.5,
                num_kv_heads=kv_heads,
                cache_config=vllm_config.cache_config,
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix.partition(".")[0], f"slots.{slot}.attn"),
            )
            for slot in slots
        )

    def forward(self, visit: int, query: Tensor, key: Tensor, value: Tensor, readers: int = 1) -> Tensor:
        """[tokens, heads × size]. Of several readers, each with all of the step's tokens, the last leaves its entries."""
        if readers == 1:
            return self._attend(visit, query, key, value)
        made: list[Tensor] = []
        for asked, own, held in zip(query.chunk(readers), key.chunk(readers), value.chunk(readers), strict=True):
            ordered = after(own, made[-1]) if made and torch.compiler.is_compiling() else own
            made.append(self._attend(visit, asked, ordered, held))
        return torch.cat(made)

    def _attend(self, visit: int, *parts: Tensor) -> Tensor:
        if not self.padding:
            return self._visit(visit, *parts)
        wide = (F.pad(part.unflatten(-1, (-1, self.size)), (0, self.padding)).flatten(1) for part in parts)
        made = self._visit(visit, *wide).unflatten(-1, (-1, self.size + self.padding))
        return made[..., : self.size].flatten(1)

    def _visit(self, visit: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.few is not None:
            return self.few.attend(self[visit], query, (key, value), self.entries)
        if self.keeps:
            self.entries = key, value
        return self[visit](query, key, value)


def _kernel_size(size: int) -> int:
    """The smallest size of a head that the CPU's kernels have, and that holds one of `size`; GPUs' have all that occur."""
    if not current_platform.is_cpu():
        return size
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return min((each for each in CPUAttentionBackend.get_supported_head_sizes() if each >= size), default=size)


class FewRows:
    """Some rows of a pass that has ended, each with one token, on a CPU: they attend once more, with other entries for it."""

    def __init__(self, rows: Tensor, metadata: Any, slot: Any) -> None:
        """`slot` is one of the slots that they will visit, `metadata` that of the pass."""
        from vllm import _custom_ops as operators
        from vllm import envs

        self.rows, lengths, starts = rows, metadata.seq_lens[rows], torch.arange(len(rows) + 1, dtype=torch.int32)
        kernel = slot.impl
        scheduled = operators.cpu_attn_get_scheduler_metadata(
            len(rows),
            kernel.num_heads,
            kernel.num_kv_heads,
            kernel.head_size,
            lengths,
            slot.dtype,
            starts,
            metadata.causal,
            kernel.sliding_window,
            slot.isa,
            envs.VLLM_CPU_ATTN_SPLIT_KV,
            kv_cache_dtype=kernel.kv_cache_dtype,
        )
        self.metadata = replace(
            metadata,
            num_actual_tokens=len(rows),
            query_start_loc=starts,
            seq_lens=lengths,
            block_table=metadata.block_table[rows],
            slot_mapping=metadata.slot_mapping[rows],
            scheduler_metadata=scheduled,
        )

    def attend(self, slot: Any, query: Tensor, other: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> Tensor:
        """[rows, heads × size], by the `other` keys and values; the pass's `own` [tokens, …] are put back after it."""
        kernel, cache, places = slot.impl, slot.kv_cache, self.metadata.slot_mapping
        query, *other_entries = (each.unflatten(1, (-1, kernel.head_size)) for each in (query, *other))
        own_entries = (each[self.rows].unflatten(1, (-1, kernel.head_size)) for each in own)
        kernel.do_kv_cache_update(slot, *other_entries, cache, places)
        made = torch.empty_like(query)
        kernel.forward(slot, query, *other_entries, cache, self.metadata, made)
        kernel.do_kv_cache_update(slot, *own_entries, cache, places)
        return made.flatten(1)
