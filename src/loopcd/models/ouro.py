"""Ouro (model type `ouro`; 1.4B, 2.6B and the Thinking variants): a whole stack of layers applied loop after loop.

    begin     embeddings                                       h = E[tokens]
    advance   all layers, then the final norm                  h ← norm(layers(h))
    readout   the state itself, which is normed already

After each loop a gate says how likely the model would be to stop there; its exits only choose which loop is read.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast

from loopcd.models.cache import LoopCache
from loopcd.models.configs import OuroConfig
from loopcd.models.layers import LoopedLayer, RMSNorm, RotaryTable, rotate_halves
from loopcd.models.stages import LoopedModel, LoopState, Pass, checked_loops, heard_loops, wide


class OuroAttention(nn.Module):
    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads or 0
        self.head_dim = config.head_dim or 0
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, time, head_dim], with the positions in them."""
        rows, time, _ = x.shape
        qk = torch.cat([self.q_proj(x), self.k_proj(x)], dim=-1).view(rows, time, -1, self.head_dim)
        qk = rotate_halves(qk, cos, sin).transpose(1, 2)
        value = self.v_proj(x).view(rows, time, -1, self.head_dim)
        return qk[:, : self.heads], qk[:, self.heads :], value.transpose(1, 2)


class OuroMLP(nn.Module):
    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class OuroLayer(LoopedLayer):
    """A norm before and a norm after each half, both inside the residual sum."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__(config)
        self.self_attn = OuroAttention(config)
        self.mlp = OuroMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm_2 = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm_2 = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn.project(self.input_layernorm(x), cos, sin)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.input_layernorm_2(self.self_attn.o_proj(attended))
        return x + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(x)))


class OuroStack(nn.Module):
    """The parameters under the public checkpoints' prefix `model.`; the stages below run them."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(OuroLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.early_exit_gate = nn.Linear(config.hidden_size, 1)


class OuroForCausalLM(LoopedModel):
    config_class = OuroConfig
    base_model_prefix = "model"
    _no_split_modules = ["OuroLayer"]  # noqa: RUF012
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: OuroConfig) -> None:
        super().__init__(config)
        self.model = OuroStack(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rotary = RotaryTable(config.rope_base, config.head_dim or 0, "halves")
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed_tokens = value  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, RMSNorm):
            init.ones_(module.weight)

    @property
    def num_loops(self) -> int:
        return self.config.total_ut_steps

    def set_num_loops(self, num_loops: int) -> None:
        self.config.total_ut_steps = checked_loops(num_loops, 0)

    def loop_slots(self, loop: int) -> Sequence[int]:
        layers = len(self.model.layers)
        return range((loop - 1) * layers, loop * layers)

    def slot_count(self, num_loops: int | None = None) -> int:
        return (num_loops or self.num_loops) * self.config.num_hidden_layers

    # -- the four stages ----------------------------------------------------------------------------------------------

    def begin(
        self,
        input_ids: Tensor | None = None,
        cache: LoopCache | None = None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        init_seed: int | Sequence[int] | None = None,
        init_state: Tensor | None = None,
    ) -> LoopState:
        """Ouro starts from the embeddings: there is no initial state to draw or give."""
        if init_seed is not None or init_state is not None:
            raise ValueError("init_seed and init_state are for models that start from a latent state (Huginn), not for Ouro")
        x = self.embedded(input_ids, inputs_embeds)
        tokens, position_ids = self.open_pass(x, cache, attention_mask, position_ids)
        rotary = self.rotary(position_ids, tokens.length, x.dtype)
        return LoopState(x, 0, Pass(tokens.span, cache, tokens.mask, rotary))

    def advance(self, state: LoopState) -> LoopState:
        x, tokens, loop = state.hidden, state.tokens, state.loop + 1
        mask = self.enter(tokens, loop)
        for layer, index in zip(self.model.layers, self.loop_slots(loop), strict=True):
            x = layer(x, tokens.rotary, mask, None if tokens.cache is None else tokens.cache.slot(index), tokens.span)
        return LoopState(self.model.norm(x).to(state.hidden.device), loop, tokens)

    def readout(self, state: LoopState, last: bool = False) -> Tensor:
        return state.hidden[:, -1:] if last else state.hidden

    # -- the gate -----------------------------------------------------------------------------------------------------

    def gate_logits(self, state: LoopState) -> Tensor:
        """The gate's logit [rows, time] after this loop."""
        return self.model.early_exit_gate(state.hidden).squeeze(-1).to(state.hidden.device)

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
        num_loops = heard_loops(num_loops, kwargs)
        # every argument stands in the signature: transformers' generate passes on only what it finds there
        options = {
            **kwargs,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            "inputs_embeds": inputs_embeds,
            "use_cache": use_cache,
            "num_loops": num_loops,
        }
        if exit_threshold is None and exit_at_step is None and not use_weighted_exit:
            more = {"labels": labels, "logits_to_keep": logits_to_keep, "output_hidden_states": output_hidden_states}
            return super().forward(input_ids, **options, **more)
        num_loops = checked_loops(num_loops, self.num_loops)
        output = super().forward(input_ids, **options, output_hidden_states=True, logits_to_keep=1)
        assert output.hidden_states is not None
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden = torch.stack(output.hidden_states[1:], dim=2)[:, kept]  # [batch, time, loops, width]
        pdf = exit_pdf(wide(self.model.early_exit_gate(hidden).squeeze(-1)))  # [batch, time, loops]
        if exit_at_step is not None:
            if not 0 <= exit_at_step < num_loops:
                raise ValueError(f"exit_at_step={exit_at_step}: a loop from 0 to {num_loops - 1}")
            logits = self.head(hidden[:, :, exit_at_step])
        elif exit_threshold is not None:
            reached = exit_loop(pdf, exit_threshold) - 1  # [batch, time]
            logits = self.head(hidden.gather(2, reached[..., None, None].expand_as(hidden[:, :, :1])).squeeze(2))
        else:
            logits = (self.head(hidden) * pdf[..., None]).sum(dim=2)
        output.logits = logits  # pyright: ignore[reportAttributeAccessIssue]
        if labels is not None:
            output.loss = self.loss_function(logits=output.logits, labels=labels, vocab_size=self.config.vocab_size)
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
