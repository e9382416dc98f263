"""HRM-Text (in transformers as `hrm_text`) through the four stages: one high-level cycle is one loop.

transformers' own model keeps its parameters and layers; this class only says how they are walked through.

    begin     embeddings × scale; low-level state z_L           z_H = x
    advance   L_cycles of the low-level stack, one of the high   z_L ← L(z_L + z_H) …, z_H ← H(z_H + z_L)
    readout   z_H, which the high-level stack has normed
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.models.hrm_text.configuration_hrm_text import HrmTextConfig
from transformers.models.hrm_text.modeling_hrm_text import HrmTextForCausalLM

from loopcd.models.cache import LoopCache
from loopcd.models.stages import LoopedModel, LoopState, Pass, checked_loops


class LoopedHrmText(LoopedModel, HrmTextForCausalLM):
    config_class = HrmTextConfig

    @property
    def num_loops(self) -> int:
        return self.config.H_cycles

    def set_num_loops(self, num_loops: int) -> None:
        self.config.H_cycles = checked_loops(num_loops, 0)

    def loop_slots(self, loop: int) -> Sequence[int]:
        slots = (self.config.num_layers_per_stack or 0) * (self.config.L_cycles + 1)
        return range((loop - 1) * slots, loop * slots)

    def slot_count(self, num_loops: int | None = None) -> int:
        return (num_loops or self.num_loops) * len(self.loop_slots(1))

    def begin(
        self,
        input_ids: Tensor | None = None,
        cache: LoopCache | None = None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        init_seed: int | Sequence[int] | None = None,
    ) -> LoopState:
        if init_seed is not None:
            raise ValueError("init_seed is for models that start from a random latent state (Huginn), not for HRM-Text")
        x = self.embedded(input_ids, inputs_embeds) * (self.config.embedding_scale or 1.0)
        tokens, position_ids = self.open_pass(x, cache, attention_mask, position_ids)
        rotary = self.model.rotary_emb(x, position_ids)
        low = self.model.z_L_init.to(x).expand_as(x)
        return LoopState(x, 0, Pass(tokens.span, cache, tokens.mask, rotary), extra=low)

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

    def readout(self, state: LoopState, last: bool = False) -> Tensor:
        return state.hidden[:, -1:] if last else state.hidden


def _additive(mask: Tensor | None, model: LoopedHrmText) -> Tensor | None:
    # transformers' eager attention adds its mask; the other implementations take ours
    if mask is None or model.config._attn_implementation != "eager":
        return mask
    return torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill(~mask, torch.finfo(model.dtype).min)
