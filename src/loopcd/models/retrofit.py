"""Retrofitted recurrence (model type `huginn_raven`, as Huginn): a Llama or OLMo whose middle layers were made to loop.

    begin     embeddings × embed_scale, prelude               x = P(s · E[tokens])
    advance   core block on state and prelude output          h ← C(A[h, x])
    readout   coda, then the final norm, once                 ln_f(coda(h))

The stages are those of `recurrent.py`, the layers the base model's. Which base model that was, only the weights' names say
(`layers_like` keeps it).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from loopcd.models import recognition
from loopcd.models.checkpoint import Shape
from loopcd.models.configs import RetrofitConfig
from loopcd.models.huginn import HuginnAttention, HuginnMLP
from loopcd.models.layers import Llama3Scaling, LoopedLayer, RMSNorm, RotaryTable, rotate_halves
from loopcd.models.places import Together
from loopcd.models.recurrent import RecurrentModel
from loopcd.models.stages import LoopState


class RetrofitAttention(HuginnAttention):
    """Huginn's projections, rotated in halves; OLMo norms all queries and all keys together before that."""

    def __init__(self, config: RetrofitConfig) -> None:
        super().__init__(config)
        self.normed = config.layers_like == "olmo"
        if self.normed:
            self.q_norm = RMSNorm(self.heads * self.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(self.kv_heads * self.head_dim, config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, time, head_dim], with the positions in them."""
        rows, time, _ = x.shape
        rotated = self.heads + self.kv_heads
        qkv = self.Wqkv(x)  # [rows, time, (heads + 2 kv_heads) × head_dim]
        qk, value = qkv[..., : rotated * self.head_dim], qkv[..., rotated * self.head_dim :]
        if self.normed:
            query, key = qk.split([self.heads * self.head_dim, self.kv_heads * self.head_dim], dim=-1)
            qk = torch.cat([self.q_norm(query), self.k_norm(key)], dim=-1)
        qk = rotate_halves(qk.view(rows, time, rotated, self.head_dim).to(cos.dtype), cos, sin).to(x.dtype).transpose(1, 2)
        value = value.view(rows, time, self.kv_heads, self.head_dim).transpose(1, 2)
        return qk[:, : self.heads], qk[:, self.heads :], value


class RetrofitLayer(LoopedLayer):
    """Two norms: before each half as in Llama, or after it and inside the residual sum as in OLMo."""

    def __init__(self, config: RetrofitConfig) -> None:
        super().__init__(config)
        self.norm_1, self.norm_2 = (RMSNorm(config.n_embd, config.norm_eps) for _ in range(2))
        self.attn = RetrofitAttention(config)
        self.mlp = HuginnMLP(config)
        self.norms_first = config.layers_like == "llama"

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.attn(self.norm_1(x) if self.norms_first else x, cos, sin)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        if self.norms_first:
            x = x + self.attn.proj(attended)
            return x + self.mlp(self.norm_2(x))
        x = x + self.norm_1(self.attn.proj(attended))
        return x + self.norm_2(self.mlp(x))


class RetrofitForCausalLM(RecurrentModel):
    config_class = RetrofitConfig
    kinds = ("retrofit-llama", "retrofit-olmo")
    layer_class = RetrofitLayer
    start_field = "initial_state_mode"
    stale_tokens = recognition.HUGINN_TOKENS  # which the converters leave in
    _no_split_modules = ["RetrofitLayer"]  # noqa: RUF012

    def __init__(self, config: RetrofitConfig) -> None:
        super().__init__(config)
        scaling = Llama3Scaling.read(config.rope_parameters)
        self.rotary = RotaryTable(config.rotary_base, config.head_dim or 0, "halves", scaling)
        self.post_init()

    @classmethod
    def check_kind(cls, fields: dict[str, Any], config: RetrofitConfig, kind: str, shapes: dict[str, Shape]) -> None:
        super().check_kind(fields, config, kind, shapes)
        config.layers_like = kind.removeprefix("retrofit-")

    def make_adapter(self, config: RetrofitConfig) -> nn.Module:
        return nn.Linear(2 * config.n_embd, config.n_embd, bias=config.bias)

    def make_rotary(self, position_ids: Tensor, length: int, input_ids: Tensor | None = None) -> Any:
        # OLMo rotates in float32, Llama in the working dtype
        own: Any = self.transformer["ln_f"].weight  # not asked of the parameters, of which DataParallel's copies have none
        return self.rotary(position_ids, length, torch.float32 if self.config.layers_like == "olmo" else own.dtype)

    # -- the start state: zero or drawn as Huginn's, or what the prelude made (only OLMo's public code has the choice) ---

    @property
    def starts_from_prelude(self) -> bool:
        return self.config.layers_like == "olmo" and self.config.initial_state_mode != "random"

    @property
    def has_initial_state(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.starts_from_prelude

    def initial_state(self, like: Tensor, position_ids: Tensor, seed: int | Sequence[int] | None) -> Tensor:
        made = super().initial_state(like, position_ids, seed)
        return like if self.starts_from_prelude else made

    def inject(self, state: LoopState) -> Tensor:
        if state.loop or not self.starts_from_prelude or self.config.initial_state_mode != "skip-adapter":
            return super().inject(state)
        cache, rows = state.tokens.cache, len(state.hidden)
        fresh = cache.fresh if isinstance(cache, Together) else rows  # of texts each at its own loop, some are past the first
        if fresh == rows:
            return state.hidden
        return torch.cat([state.hidden[:fresh], super().inject(state)[fresh:]])


AutoModelForCausalLM.register(RetrofitConfig, RetrofitForCausalLM, exist_ok=True)
