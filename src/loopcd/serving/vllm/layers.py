"""What both families' vLLM models share: rotary tables, paged attention visited once a loop, and the model's two ends."""

# pyright: reportMissingImports=false

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from loopcd.models.layers import RotaryTable
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


class Visits(nn.ModuleList):
    """Paged attention for one layer's weights, with a key/value slot of its own for each time that the layer is visited.

    vLLM knows a slot by the number in its name, and each number may occur once in the model.
    """

    def __init__(self, heads: Heads, slots: Sequence[int], vllm_config: Any, prefix: str) -> None:
        super().__init__(
            Attention(
                heads.own,
                heads.size,
                heads.size**-0.5,
                num_kv_heads=heads.own_kv,
                cache_config=vllm_config.cache_config,
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix.partition(".")[0], f"slots.{slot}.attn"),
            )
            for slot in slots
        )


# the looped models of this process, found again by the processor that vLLM makes apart from them
_models: WeakValueDictionary[int, "LoopedForCausalLM"] = WeakValueDictionary()


def model_of(vllm_config: Any) -> "LoopedForCausalLM | None":
    """The model that was made from this configuration in this process."""
    return _models.get(id(vllm_config.compilation_config))


class LoopedForCausalLM(nn.Module):
    """A looped model with its head. `forward` gives the readouts [tokens, (1 + amateurs) × width], the expert's first."""

    ignored: tuple[str, ...] = ()  # weights of the checkpoint that are not needed here
    stacked: dict[str, tuple[str, Any]] = {}  # noqa: RUF012 (weights that are one matrix here)
    embedding = ""  # the embeddings' name in the checkpoint

    def __init__(self, vllm_config: Any) -> None:
        check_version()
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.served: Served = read_served(self.config, vllm_config.additional_config)
        self.readouts: Tensor | None = None  # [rows, amateurs × width] of the rows whose logits were asked for last
        _models[id(vllm_config.compilation_config)] = self

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
        stack = self.get_submodule(self.embedding.partition(".")[0])
        return stack(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """The expert's logits. What the amateurs read out in the same rows is kept for the processor, which comes next."""
        width = self.config.hidden_size
        self.readouts = hidden_states[:, width:]
        return self.logits_processor(self.lm_head, hidden_states[:, :width].contiguous())

    def amateur_logits(self, loop: int, rows: Tensor) -> Tensor:
        """[rows, vocab] of the model stopped at that loop. Every tensor-parallel rank calls it with the same rows."""
        assert self.readouts is not None
        width, place = self.config.hidden_size, self.served.amateur_loops.index(loop)
        hidden = self.readouts[rows, place * width : (place + 1) * width]
        return self.logits_processor(self.lm_head, hidden)

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


def joined(expert: Tensor, amateurs: Sequence[Tensor]) -> Tensor:
    """[tokens, (1 + amateurs) × width]"""
    return torch.cat([expert, *amateurs], dim=-1) if amateurs else expert
