"""Ouro (model type `ouro`; 1.4B, 2.6B and the Thinking variants): a whole stack of layers applied loop after loop.

The stages are those of `stacked.py`; the layers have a norm on both sides of each half. After each loop a gate says how likely
the model would be to stop there; its exits only choose which loop is read.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from loopcd.models.cache import LoopCache
from loopcd.models.configs import OuroConfig
from loopcd.models.layers import LlamaAttention, LlamaMLP, LoopedLayer, RMSNorm
from loopcd.models.stacked import StackedModel
from loopcd.models.stages import LoopState, wide


class OuroLayer(LoopedLayer):
    """A norm before and a norm after each half, both inside the residual sum."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__(config)
        self.self_attn = LlamaAttention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm_2 = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm_2 = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own: Any = self._modules
        return own["self_attn"].project(own["input_layernorm"](x), cos, sin)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        own: Any = self._modules
        x = x + own["input_layernorm_2"](own["self_attn"]._modules["o_proj"](attended))
        return x + own["post_attention_layernorm_2"](own["mlp"](own["post_attention_layernorm"](x)))


class OuroForCausalLM(StackedModel):
    config_class = OuroConfig
    kinds = ("ouro",)
    layer_class = OuroLayer
    loops_field = "total_ut_steps"
    _no_split_modules = ["OuroLayer"]  # noqa: RUF012

    def __init__(self, config: OuroConfig) -> None:
        super().__init__(config)
        self.model.early_exit_gate = nn.Linear(config.hidden_size, 1)
        self.post_init()

    # -- the gate -----------------------------------------------------------------------------------------------------

    def gate_logits(self, state: LoopState) -> Tensor:
        """The gate's logit [rows, time] after this loop."""
        return self._gate(state.hidden).to(state.hidden.device)

    def _gate(self, hidden: Tensor) -> Tensor:
        return self.model.early_exit_gate(hidden).squeeze(-1)  # pyright: ignore[reportCallIssue]

    @can_return_tuple
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: LoopCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_loops: int | None = None,
        output_hidden_states: bool | None = None,
        exit_threshold: float | None = None,
        exit_at_step: int | None = None,
        use_weighted_exit: bool = False,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As for every looped model; the public code's exits choose which loop's logits are returned, all loops being run.

        `exit_threshold` takes for each token the first loop at which the gate's cumulated probability reaches it,
        `exit_at_step` one loop for all (0 is the first), `use_weighted_exit` the mean over the gate's distribution.
        """
        # every argument stands in the signature: transformers' generate passes on only what it finds there
        given = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        told = dict(kwargs)  # what the loss may be told
        kwargs |= {"use_cache": use_cache, "num_loops": num_loops, "return_dict": True}
        if exit_threshold is None and exit_at_step is None and not use_weighted_exit:
            kwargs |= {"logits_to_keep": logits_to_keep, "output_hidden_states": output_hidden_states}
            return super().forward(*given, labels, **kwargs)
        output = super().forward(*given, output_hidden_states=True, logits_to_keep=1, **kwargs)
        assert output.hidden_states is not None
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden = torch.stack(output.hidden_states[1:], dim=2)[:, kept]  # [batch, time, loops, width]
        pdf = exit_pdf(wide(self._gate(hidden))).to(hidden.device)  # [batch, time, loops]
        if exit_at_step is not None:
            if not 0 <= exit_at_step < hidden.shape[2]:
                raise ValueError(f"exit_at_step={exit_at_step}: a loop from 0 to {hidden.shape[2] - 1}")
            logits = self.head(hidden[:, :, exit_at_step])
        elif exit_threshold is not None:
            reached = exit_loop(pdf, exit_threshold) - 1  # [batch, time]
            logits = self.head(hidden.gather(2, reached[..., None, None].expand_as(hidden[:, :, :1])).squeeze(2))
        else:
            logits = (self.head(hidden) * pdf[..., None]).sum(dim=2)
        output.logits = logits  # pyright: ignore[reportAttributeAccessIssue]
        if labels is not None:
            output.loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **told)
        output.hidden_states = output.hidden_states if output_hidden_states else None
        return output


def exit_pdf(gate_logits: Tensor) -> Tensor:
    """p_i = σ(g_i) · Π_(j<i) (1 − σ(g_j)) over the last dimension; the last loop takes what remains."""
    stop = torch.sigmoid(gate_logits)
    going = torch.cumprod(1 - stop, dim=-1)  # still in the loop after loop i
    before = torch.cat([torch.ones_like(going[..., :1]), going[..., :-1]], dim=-1)
    return torch.cat([(stop * before)[..., :-1], before[..., -1:]], dim=-1)


def exit_loop(pdf: Tensor, threshold: float) -> Tensor:
    """The first loop (1 is the first) at which the cumulated probability reaches the threshold, else the last one."""
    reached = pdf.cumsum(dim=-1) >= threshold  # [..., loops]
    last = pdf.shape[-1]
    return torch.where(reached.any(dim=-1), reached.float().argmax(dim=-1) + 1, last)


AutoModelForCausalLM.register(OuroConfig, OuroForCausalLM, exist_ok=True)
