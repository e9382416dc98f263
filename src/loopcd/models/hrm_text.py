"""HRM-Text (in transformers as `hrm_text`) through the four stages: one high-level cycle is one loop.

transformers' own model keeps its parameters and layers; this class only says how they are walked through.

    begin     embeddings × scale; low-level state z_L           z_H = x
    advance   L_cycles of the low-level stack, one of the high   z_L ← L(z_L + z_H) …, z_H ← H(z_H + z_L)
    readout   z_H, which the high-level stack has normed

It was trained on prompts that are read in both directions and answers that are read causally. `token_type_ids` say which is
which, as in transformers' own class: 1 for a token that sees all others of type 1. Where it writes, the prompt is of type
1 unless they are given; a plain forward pass, as in transformers, takes a text without them to be causal.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.configuration_utils import GenerationMode
from transformers.models.hrm_text.configuration_hrm_text import HrmTextConfig
from transformers.models.hrm_text.modeling_hrm_text import HrmTextForCausalLM

from loopcd.models.cache import LoopCache
from loopcd.models.checkpoint import Shape
from loopcd.models.stages import LoopedModel, LoopState, Pass

_PARTS = {  # what the public checkpoint has as one, or under another name; transformers takes it apart
    ".mlp.gate_up_proj.weight": (".mlp.gate_proj.weight", ".mlp.up_proj.weight"),
    ".attn.gqkv_proj.weight": tuple(f".self_attn.{part}_proj.weight" for part in ("gate", "q", "k", "v")),
    ".attn.o_proj.weight": (".self_attn.o_proj.weight",),
}


class LoopedHrmText(LoopedModel, HrmTextForCausalLM):
    config_class = HrmTextConfig
    kinds = ("hrm_text",)
    loops_field = "H_cycles"

    @classmethod
    def layer_total(cls, config: HrmTextConfig) -> int:
        return 2 * (config.num_layers_per_stack or 0)

    @classmethod
    def as_loaded(cls, shapes: dict[str, Shape]) -> dict[str, Shape]:
        found = {}
        for name, shape in shapes.items():
            end = next((each for each in _PARTS if name.endswith(each)), "")
            parts = _PARTS.get(end, ("",))
            rows = tuple(size // len(parts) for size in shape[:1])
            found |= {name.removesuffix(end) + part: (*rows, *shape[1:]) for part in parts}
        return found

    def loop_slots(self, loop: int) -> range:
        slots = (self.config.num_layers_per_stack or 0) * (self.config.L_cycles + 1)
        return range((loop - 1) * slots, loop * slots)

    def prompt_options(self, input_ids: Tensor | None, token_type_ids: Tensor | None = None) -> dict[str, Any]:
        types = token_type_ids
        if types is None:
            if input_ids is None or not self.config.prefix_lm:
                return {}
            types = torch.ones_like(input_ids)
        if not self.config.prefix_lm and bool(types.any()):
            raise ValueError("token_type_ids: this HRM-Text has prefix_lm=False, its prompts are causal; leave them out")
        return {"token_type_ids": types} if bool(types.any()) else {}

    def begin(
        self,
        input_ids: Tensor | None = None,
        cache: LoopCache | None = None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        init_seed: int | Sequence[int] | None = None,
        token_type_ids: Tensor | None = None,
    ) -> LoopState:
        """`token_type_ids` [batch, time] are 1 where a token is part of the prompt; they count for a text's first pass."""
        if init_seed is not None:
            raise ValueError("init_seed is for models that start from a random latent state (Huginn), not for HRM-Text")
        if cache is not None and self.training and self.is_gradient_checkpointing:  # transformers' layers would drop it
            raise ValueError(
                "a cache with gradient checkpointing in training mode: HRM-Text's layers keep no keys then; "
                "call model.eval(), or model.gradient_checkpointing_disable()"
            )
        x = self.embedded(input_ids, inputs_embeds) * (self.config.embedding_scale or 1.0)
        tokens, position_ids = self.open_pass(x, cache, attention_mask, position_ids)
        mask = tokens.mask
        if token_type_ids is not None and tokens.span.start == 0:
            valid = None if attention_mask is None else attention_mask.bool()
            mask = prefix_mask(token_type_ids == 1, valid)
        rotary = self.model.rotary_emb(x, position_ids)
        low = self.model.z_L_init.to(x).expand_as(x)
        return LoopState(x, 0, Pass(tokens.span, cache, mask, rotary), extra=low)

    def advance(self, state: LoopState) -> LoopState:
        high, low, tokens = state.hidden, state.extra, state.tokens
        assert low is not None
        if tokens.cache is not None:
            tokens.cache.span = tokens.span  # transformers' layers write where the cache's open span says
        offset, per_stack = self.loop_slots(state.loop + 1)[0], self.config.num_layers_per_stack or 0
        shared = {
            "attention_mask": _additive(self.enter(tokens, state.loop + 1), self),
            "past_key_values": tokens.cache,
            "position_embeddings": tokens.rotary,
        }
        for cycle in range(self.config.L_cycles):
            low = self.model.L_module(low + high, cycle_offset=offset + cycle * per_stack, **shared).to(high.device)
        high = self.model.H_module(high + low, cycle_offset=offset + self.config.L_cycles * per_stack, **shared)
        return LoopState(high.to(state.hidden.device), state.loop + 1, tokens, extra=low)

    # -- generation through transformers ------------------------------------------------------------------------------

    def generate(self, inputs: Tensor | None = None, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As for every looped model; what is given to go on from is a prompt, unless `token_type_ids` say otherwise."""
        given = kwargs.get("input_ids") if inputs is None else inputs
        if (embeddings := kwargs.get("inputs_embeds")) is not None:  # which are read instead of the ids
            given = torch.empty(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
        if kwargs.get("token_type_ids") is None:
            kwargs.update(self.prompt_options(given))
        return super().generate(inputs, **kwargs)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *args: Any, **kwargs: Any
    ) -> None:
        if (types := model_kwargs.get("token_type_ids")) is not None and bool(types.any()):
            if generation_mode == GenerationMode.ASSISTED_GENERATION:
                raise ValueError(
                    "assistant_model or prompt_lookup_num_tokens: transformers takes drafts for a part of the prompt, which "
                    "HRM-Text reads in both directions; draft with loopcd.SelfDraft, or give token_type_ids of 0"
                )
            generation_config.prefill_chunk_size = None  # what is read in both directions is read at once
        super()._prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, *args, **kwargs)

    def _update_model_kwargs_for_generation(self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **more: Any) -> Any:
        types = model_kwargs.get("token_type_ids")
        updated = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **more)
        if types is not None:  # what is written is no prompt
            updated["token_type_ids"] = torch.cat([types, torch.zeros_like(types[:, :1])], dim=1)
        return updated


def prefix_mask(prompt: Tensor, valid: Tensor | None) -> Tensor:
    """[rows, 1, time, time]: tokens of the prompt [rows, time] see each other, all others what is before them."""
    time = prompt.shape[1]
    mask = torch.ones(time, time, dtype=torch.bool, device=prompt.device).tril()
    mask = mask | (prompt[:, :, None] & prompt[:, None, :])
    if valid is not None:
        mask = mask & (valid[:, None, :] | torch.eye(time, dtype=torch.bool, device=prompt.device))
    return mask[:, None]


def _additive(mask: Tensor | None, model: LoopedHrmText) -> Tensor | None:
    # transformers' eager attention adds its mask; the other implementations take ours
    if mask is None or model.config._attn_implementation != "eager":
        return mask
    return torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill(~mask, torch.finfo(model.dtype).min)
