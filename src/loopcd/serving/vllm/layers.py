"""What all families' vLLM models share: rotary tables, paged attention visited once a loop, and the model's two ends."""

# pyright: reportMissingImports=false

from collections.abc import Collection, Iterable, Iterator, Sequence
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


class Visits(nn.ModuleList):
    """Paged attention for one layer's weights, with a key/value slot of its own for each time that the layer is visited.

    vLLM knows a slot by the number in its name, and each number may occur once in the model.
    """

    def __init__(self, heads: Heads, slots: Sequence[int], vllm_config: Any, prefix: str) -> None:
        self.size, self.padding = heads.size, _kernel_size(heads.size) - heads.size
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
        parts = [each.unflatten(0, (readers, -1)).unbind() for each in (query, key, value)]
        made = [self._attend(visit, *(part[0] for part in parts))]
        for reader in range(1, readers):
            query, key, value = (part[reader] for part in parts)
            key = after(key, made[-1]) if torch.compiler.is_compiling() else key
            made.append(self._attend(visit, query, key, value))
        return torch.cat(made)

    def _attend(self, visit: int, *parts: Tensor) -> Tensor:
        if not self.padding:
            return self[visit](*parts)
        wide = (F.pad(part.unflatten(-1, (-1, self.size)), (0, self.padding)).flatten(1) for part in parts)
        made = self[visit](*wide).unflatten(-1, (-1, self.size + self.padding))
        return made[..., : self.size].flatten(1)


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

    def expect(self, loops: Collection[int], resumed: Sequence[int]) -> None:
        """What the coming passes have: the amateur loops that rows ask for (no others are read out, unless a graph was
        fixed), and rows of requests that were preempted, whose text so far is read again."""
        self.resumed = resumed
        if self.eager:
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
        assert self.readouts is not None
        return self.logits_processor(self.lm_head, self.readouts[rows, places])

    def token_logits(self, rows: Array, places: Array, tokens: Array) -> Array:
        """[n]: of the token tokens[i] there; on a CPU."""
        assert self.readouts is not None
        head = self._whole_head
        if head is None:  # this rank has a part of it, or it is quantised
            at = torch.from_numpy(tokens)[:, None]
            return self.amateur_logits(torch.from_numpy(rows), torch.from_numpy(places)).gather(1, at)[:, 0].float().numpy()
        if self.readouts.dtype == torch.float32:
            return np.einsum("nw,nw->n", self.readouts.numpy()[rows, places], head.numpy()[tokens])
        return (self.readouts[rows, places].float() * head[tokens]).sum(dim=1).numpy()

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
