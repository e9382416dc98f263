"""What all families' vLLM models share: rotary tables, paged attention visited once a loop, and the model's two ends."""

# pyright: reportMissingImports=false

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import CUDAGraphMode
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors

from loopcd.models.layers import RotaryTable
from loopcd.serving.vllm.contrast import Array
from loopcd.serving.vllm.served import Served, read_served
from loopcd.serving.vllm.start_up import check_version

Rotary = tuple[Tensor, Tensor]  # cos and signed sin, each [tokens, 1, head_dim]


class Positions(nn.Module):
    """The rotary table of all positions that the engine may reach, as the transformers side computes it."""

    def __init__(self, table: RotaryTable, length: int, dtype: torch.dtype) -> None:
        super().__init__()
        cos, sin = table(torch.arange(length)[None], length, dtype)  # [1, length, 1, head_dim]
        self.register_buffer("cos", cos[0], persistent=False)
        self.register_buffer("sin", sin[0], persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        return self.cos[positions], self.sin[positions]  # pyright: ignore[reportIndexIssue]


class Heads:
    """This rank's share of the attention heads."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int) -> None:
        ranks = get_tensor_model_parallel_world_size()
        if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
            raise ValueError(f"tensor_parallel_size={ranks} does not divide {heads} heads and {kv_heads} key/value heads")
        self.all, self.all_kv = heads, kv_heads
        self.own, self.own_kv, self.size = heads // ranks, max(1, kv_heads // ranks), head_dim

    @property
    def widths(self) -> list[int]:
        return [self.own * self.size, self.own_kv * self.size, self.own_kv * self.size]

    @property
    def rows(self) -> tuple[slice, slice]:
        """Which heads are this rank's, of queries and of keys; where ranks outnumber key/value heads, several share one."""
        rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        first_kv = rank * self.all_kv // ranks
        return slice(rank * self.own, (rank + 1) * self.own), slice(first_kv, first_kv + self.own_kv)


@torch.library.custom_op("loopcd::after", mutates_args=())
def after(x: Tensor, done: Tensor) -> Tensor:
    """`x`, to be computed after `done`: a compiler sees only by such a dependency that entries of a slot are written over."""
    return x.clone()


@after.register_fake
def _(x: Tensor, done: Tensor) -> Tensor:
    return torch.empty_like(x)


class Norm(RMSNorm):
    """vLLM's, without its way to the kernel, which on a CPU takes several times as long as the norm of a step's few rows."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if x.dtype != torch.float32 or not x.is_cpu or torch.compiler.is_compiling():
            return super().forward(x)
        made = torch.empty_like(x)
        torch.ops._C.rms_norm(made, x, self.weight.data, self.variance_epsilon)
        return made


class Visits(nn.ModuleList):
    """Paged attention for one layer's weights, with a key/value slot of its own for each time that the layer is visited.

    vLLM knows a slot by the number in its name, and each number may occur once in the model.
    """

    def __init__(self, heads: Heads, slots: Sequence[int], vllm_config: Any, prefix: str) -> None:
        self.size, self.padding = heads.size, _kernel_size(heads.size) - heads.size
        self.few: FewRows | None = None  # where set, the pass that ended is visited again, by these rows alone
        self.entries: tuple[Tensor, Tensor] | None = None  # keys and values of that pass, where they are kept
        self.keeps = False
        super().__init__(
            Attention(
                heads.own,
                heads.size + self.padding,
                heads.size**-0.5,
                num_kv_heads=heads.own_kv,
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
        parts = [each.chunk(readers) for each in (query, key, value)]
        made = [self._attend(visit, *(part[0] for part in parts))]
        for reader in range(1, readers):
            query, key, value = (part[reader] for part in parts)
            key = after(key, made[-1]) if torch.compiler.is_compiling() else key
            made.append(self._attend(visit, query, key, value))
        return torch.cat(made)

    def _attend(self, visit: int, *parts: Tensor) -> Tensor:
        if not self.padding:
            return self._visit(visit, *parts)
        wide = (F.pad(part.unflatten(-1, (-1, self.size)), (0, self.padding)).flatten(1) for part in parts)
        made = self._visit(visit, *wide).unflatten(-1, (-1, self.size + self.padding))
        return made[..., : self.size].flatten(1)

    def _visit(self, visit: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.few is not None and self.entries is not None:
            return self.few.attend(self[visit], query, (key, value), self.entries)
        if self.keeps:
            self.entries = key, value
        return self[visit](query, key, value)


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


def _kernel_size(size: int) -> int:
    """The smallest size of a head that the CPU's kernels have, and that holds one of `size`; GPUs' have all that occur."""
    if not current_platform.is_cpu():
        return size
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return min((each for each in CPUAttentionBackend.get_supported_head_sizes() if each >= size), default=size)


# the looped models of this process, found again by the processor that vLLM makes apart from them
_models: WeakValueDictionary[int, "LoopedForCausalLM"] = WeakValueDictionary()


def model_of(vllm_config: Any) -> "LoopedForCausalLM | None":
    """The model that was made from this configuration in this process."""
    return _models.get(id(vllm_config.compilation_config))


class LoopedForCausalLM(nn.Module):
    """A looped model with its head. `forward` gives the readouts [tokens, (1 + carried) × width], the expert's first."""

    ignored: tuple[str, ...] = ()  # weights of the checkpoint that are not needed here
    stacked: dict[str, tuple[str, Any]] = {}  # noqa: RUF012 (weights that are one matrix here)
    embedding = ""  # the embeddings' name in the checkpoint

    def __init__(self, vllm_config: Any) -> None:
        check_version()
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.served: Served = read_served(self.config, vllm_config.additional_config)
        self.eager = is_eager(vllm_config)
        self.resumed: Sequence[int] = ()
        self.some_rows = False
        self.readouts: Tensor | None = None  # [rows, carried, width] of the rows whose logits were asked for last
        _models[id(vllm_config.compilation_config)] = self

    @property
    def stack(self) -> Any:
        """What comes before the head."""
        return self.get_submodule(self.embedding.partition(".")[0])

    @property
    def carried(self) -> tuple[int, ...]:
        """The amateur loops that a pass reads out."""
        return self.stack.carried

    def expect(self, loops: Collection[int], resumed: Sequence[int], some_rows: bool) -> None:
        """What the coming passes have: the amateur loops that rows ask for (no others are read out, unless a graph was
        fixed), rows of requests that were preempted, whose text so far is read again, and whether only some rows' amateurs
        will be asked for."""
        self.resumed = resumed
        if self.eager:
            self.some_rows = some_rows
            self.stack.carried = tuple(loop for loop in self.served.amateur_loops if loop in loops)

    def add_head(self, embedding: nn.Module, vllm_config: Any, prefix: str) -> None:
        """To be called last: of weights that are tied, vLLM loads those that were made first."""
        self.lm_head = ParallelLMHead(
            self.config.vocab_size,
            self.config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        if self.config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(embedding)
        self.logits_processor = LogitsProcessor(self.config.vocab_size)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.get_submodule(self.embedding.removesuffix(".weight"))(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        return self.stack(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """The expert's logits. What the amateurs read out in the same rows is kept for the processor, which comes next."""
        width = self.config.hidden_size
        if hidden_states.shape[1] == width:
            self.readouts = None
            return self.logits_processor(self.lm_head, hidden_states)
        self.readouts = hidden_states[:, width:].unflatten(1, (-1, width))
        return self.logits_processor(self.lm_head, hidden_states[:, :width].contiguous())

    def amateur_logits(self, rows: Tensor, places: Tensor) -> Tensor:
        """[n, vocab]: in row rows[i], the model stopped at the loop carried[places[i]].

        Every tensor-parallel rank calls this and `token_logits` with the same rows.
        """
        return self.logits_processor(self.lm_head, self._read_out(rows, places))

    def token_logits(self, rows: Sequence[int], places: Sequence[int], owners: Sequence[int], tokens: Sequence[int]) -> Array:
        """[n]: of the token tokens[i], in row rows[owners[i]] and at its place; on a CPU."""
        read, head = self._read_out(torch.tensor(rows), torch.tensor(places)), self._whole_head
        if head is None:  # this rank has a part of it, or it is quantised
            return self.logits_processor(self.lm_head, read).float().numpy()[owners, tokens]
        if read.dtype == torch.float32:
            return np.einsum("nw,nw->n", read.numpy()[owners], head.numpy()[tokens])
        return (read[owners].float() * head[tokens]).sum(dim=1).numpy()

    def _read_out(self, rows: Tensor, places: Tensor) -> Tensor:
        """[n, width]"""
        return self.stack.read_out_late(rows, places) if self.readouts is None else self.readouts[rows, places]

    @cached_property
    def _whole_head(self) -> Tensor | None:
        whole = get_tensor_model_parallel_world_size() == 1
        return self.lm_head.weight.detach() if whole and type(self.lm_head.quant_method) is UnquantizedEmbeddingMethod else None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        mapper = WeightsMapper(orig_to_new_prefix=dict.fromkeys(self.ignored), orig_to_new_stacked=self.stacked)
        if self.config.tie_word_embeddings:
            weights = _one_of_both(weights, self.embedding)
        return AutoWeightsLoader(self).load_weights(weights, mapper=mapper)


def _one_of_both(weights: Iterable[tuple[str, Tensor]], embedding: str) -> Iterator[tuple[str, Tensor]]:
    """The embeddings of a tied model, under whichever of its two names the checkpoint has them."""
    head, seen = None, False
    for name, weight in weights:
        if name == "lm_head.weight":
            head = weight
            continue
        seen = seen or name == embedding
        yield name, weight
    if head is not None and not seen:
        yield embedding, head


def is_eager(vllm_config: Any) -> bool:
    """Whether every pass runs the model's Python code, so that passes may differ."""
    compilation = vllm_config.compilation_config
    return not compilation.mode and compilation.cudagraph_mode == CUDAGraphMode.NONE


def joined(expert: Tensor, amateurs: Sequence[Tensor]) -> Tensor:
    """[tokens, (1 + amateurs) × width]"""
    return torch.cat([expert, *amateurs], dim=-1) if amateurs else expert
