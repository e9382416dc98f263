"""What all families' vLLM models share: the stages before the head, and the model's two ends."""

# pyright: reportMissingImports=false

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from vllm.config import CUDAGraphMode
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from loopcd.serving.vllm.contrast import Array
from loopcd.serving.vllm.layers import Layer, Norm, Positions, Rotary
from loopcd.serving.vllm.served import read_served
from loopcd.serving.vllm.start_up import check_version


class LoopedStack(nn.Module):
    """What comes before the head: `begin`, `advance` loop by loop, and the `readouts` of the loops that are carried."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config, quant = vllm_config.model_config.hf_config, vllm_config.quant_config
        served = read_served(config, vllm_config.additional_config)
        self.loops, self.carried = served.num_loops, served.amateur_loops
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, quant_config=quant, prefix=f"{prefix}.embed_tokens"
        )
        made = 0
        for name, count, visits in self.groups(config):
            slots = [range(made + index, made + count * visits, count) for index in range(count)]  # visit after visit
            layers = (Layer(config, vllm_config, each, f"{prefix}.{name}.{index}") for index, each in enumerate(slots))
            self.add_module(name, nn.ModuleList(layers))
            made += count * visits
        self.norm = Norm(config)
        self.positions = Positions(config, vllm_config.model_config)

    def groups(self, config: Any) -> list[tuple[str, int, int]]:
        """Of layers that are visited together: their name, how many they are, and how often each is visited."""
        raise TypeError(f"{type(self).__name__} does not say which layers it has")

    def begin(self, embedded: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """The state before the first loop, and what every loop is given besides; each [tokens, width]."""
        return embedded, embedded

    def advance(self, state: Tensor, given: Tensor, rotary: Rotary, loop: int) -> Tensor:
        """One more loop, counted from 1."""
        raise TypeError(f"{type(self).__name__} does not say what a loop is")

    def readouts(self, last: Tensor, early: list[Tensor], rotary: Rotary) -> Tensor:
        """[tokens, (1 + early) × width], the expert's first, from its state and the amateurs', each [tokens, width]."""
        raise TypeError(f"{type(self).__name__} does not say what the head reads")

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        rotary, early = self.positions(positions), []
        state, given = self.begin(self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds, rotary)
        for loop in range(1, self.loops + 1):
            state = self.advance(state, given, rotary, loop)
            if loop in self.carried:
                early.append(state)
        return self.readouts(state, early, rotary)


# the looped models of this process, found again by the processor that vLLM makes apart from them
_models: WeakValueDictionary[int, "LoopedForCausalLM"] = WeakValueDictionary()


def model_of(vllm_config: Any) -> "LoopedForCausalLM":
    """The model that was made from this configuration in this process."""
    if (found := _models.get(id(vllm_config.compilation_config))) is None:
        raise RuntimeError("the looped model of this engine was not found in this process")
    return found


class LoopedForCausalLM(nn.Module):
    """A looped model with its head. `forward` gives the readouts [tokens, (1 + carried) × width], the expert's first."""

    stack_type: ClassVar[Any] = LoopedStack
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_substr={
            ".self_attn": ".attn",
            ".attn.Wqkv": ".attn.qkv_proj",
            ".attn.proj": ".attn.o_proj",
            ".attn.q_norm.weight": ".attn.qk_norms.0",
            ".attn.k_norm.weight": ".attn.qk_norms.1",
            ".mlp.fc": ".mlp.gate_up_proj",
            ".mlp.proj": ".mlp.down_proj",
            ".wte": ".embed_tokens",
            ".ln_f": ".norm",
        },
        orig_to_new_stacked={  # one matrix here
            ".q_proj": (".qkv_proj", "q"),
            ".k_proj": (".qkv_proj", "k"),
            ".v_proj": (".qkv_proj", "v"),
            ".gate_proj": (".gate_up_proj", 0),
            ".up_proj": (".gate_up_proj", 1),
        },
        orig_to_new_prefix={
            "freqs_cis": None,  # it may have been rounded to bfloat16: it is computed in float32 instead
            "model.early_exit_gate.": None,  # every token runs all loops
            "transformer.": "stack.",
            "model.": "stack.",
        },
    )

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        check_version()
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        self.served = read_served(config, vllm_config.additional_config)
        self.eager = is_eager(vllm_config)
        self.resumed: Sequence[int] = ()
        self.some_rows = False
        self.readouts: Tensor | None = None  # [rows, carried, width] of the rows whose logits were asked for last
        self.stack = self.stack_type(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "stack"))
        # last: of weights that are tied, vLLM loads those that were made first
        quant = vllm_config.quant_config
        self.lm_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, quant_config=quant, prefix=maybe_prefix(prefix, "lm_head")
        )
        if config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(self.stack.embed_tokens)
        self.logits_processor = LogitsProcessor(config.vocab_size)
        _models[id(vllm_config.compilation_config)] = self

    def expect(self, loops: Collection[int], resumed: Sequence[int], some_rows: bool) -> None:
        """What the coming passes have: the amateur loops that rows ask for (no others are read out, unless a graph was
        fixed), rows of requests that were preempted, whose text so far is read again, and whether only some rows' amateurs
        will be asked for."""
        self.resumed = resumed
        if self.eager:
            self.some_rows = some_rows
            self.stack.carried = tuple(loop for loop in self.served.amateur_loops if loop in loops)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.stack.embed_tokens(input_ids)

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
        self.readouts = hidden_states[:, width:].unflatten(1, (-1, width)) if hidden_states.shape[1] > width else None
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
        mapper = self.hf_to_vllm_mapper
        if self.config.tie_word_embeddings:  # a checkpoint may have them under either name
            mapper |= WeightsMapper(orig_to_new_prefix={"lm_head.": "stack.embed_tokens."})
        return AutoWeightsLoader(self).load_weights(weights, mapper=mapper)


def is_eager(vllm_config: Any) -> bool:
    """Whether every pass runs the model's Python code, so that passes may differ."""
    compilation = vllm_config.compilation_config
    return not compilation.mode and compilation.cudagraph_mode == CUDAGraphMode.NONE


def joined(expert: Tensor, amateurs: Sequence[Tensor]) -> Tensor:
    """[tokens, (1 + amateurs) × width]"""
    return torch.cat([expert, *amateurs], dim=-1) if amateurs else expert
