"""Parcae (no model type of its own; 140M to 1.3B): a prelude, a core block with a diagonal memory of its state, a coda.

    begin     embeddings, prelude, a norm of it               e = ln(P(E[tokens]))
    advance   the state decays, the prelude flows in, core    h ← C(h · exp(−Δ·exp(A)) + Δ · B e)
    readout   a projection of the state, coda, final norm     ln_f(coda(C h))

The stages are those of `recurrent.py`. Every other layer also adds the token's own value embedding to its values, so that the
later stages look the tokens up again: their ids go along with the positions, and the cache keeps them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers import initialization as init

from loopcd.models import recognition
from loopcd.models.checkpoint import Shape
from loopcd.models.configs import ParcaeConfig
from loopcd.models.layers import LoopedLayer, RMSNorm, RotaryTable, rotate_neighbours
from loopcd.models.layout import together
from loopcd.models.recurrent import RecurrentModel
from loopcd.models.stages import LoopState

GATED_CHANNELS = 32  # of a layer's input: those that say how much of the value embedding is added


class ParcaeAttention(nn.Module):
    joined = (("c_q", "c_k", "c_v"),)

    def __init__(self, config: ParcaeConfig, kv_heads: int, gated: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, kv_heads, config.head_dim
        self.c_q = nn.Linear(config.n_embd, self.heads * self.head_dim, bias=False)
        self.c_k = nn.Linear(config.n_embd, kv_heads * self.head_dim, bias=False)
        self.c_v = nn.Linear(config.n_embd, kv_heads * self.head_dim, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.ve_gate = nn.Linear(GATED_CHANNELS, kv_heads, bias=False) if gated else None
        self.qk_norm = config.qk_norm

    def project(self, x: Tensor, cos: Tensor, sin: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, time, head_dim]; `own` [rows, time, kv_heads × head_dim] are the
        tokens' value embeddings."""
        rows, time, _ = x.shape
        qkv = together(x, self.c_q, self.c_k, self.c_v).view(rows, time, -1, self.head_dim)
        qk, value = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        if own is not None and self.ve_gate is not None:
            gate = 2 * torch.sigmoid(self.ve_gate(x[..., :GATED_CHANNELS]))  # [rows, time, kv_heads]
            value = value + gate[..., None] * own.view(value.shape)
        qk = rotate_neighbours(qk.float(), cos, sin).to(x.dtype)
        if self.qk_norm:  # after the rotation, each head by itself, with no weights
            qk = F.rms_norm(qk, (self.head_dim,))
        qk = qk.transpose(1, 2)
        return qk[:, : self.heads], qk[:, self.heads :], value.transpose(1, 2)


class ParcaeMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, inner, bias=False)
        self.proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(0.5 * F.relu(self.fc(x)).square())


class ParcaeLayer(LoopedLayer):
    """A norm before each half."""

    def __init__(self, config: ParcaeConfig, number: int) -> None:
        """`number` counts over prelude, core and coda; the core has heads and a width of its own inside."""
        super().__init__(config)
        in_core = 0 <= number - config.n_layers_in_prelude < config.n_layers_in_recurrent_block
        kv_heads = config.num_attention_heads if in_core else config.num_key_value_heads or 0
        inner = config.recurrent_intermediation_embedding_dimension if in_core else config.intermediate_size
        self.num_key_value_groups = config.num_attention_heads // kv_heads
        self.norm_1, self.norm_2 = (RMSNorm(config.n_embd, config.norm_eps) for _ in range(2))
        self.attn = ParcaeAttention(config, kv_heads, gated=number in config.value_gates)
        self.mlp = ParcaeMLP(config.n_embd, inner or 0)

    def before(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, cos: Tensor, sin: Tensor, own: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.attn.project(self.norm_1(x), cos, sin, own)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.attn.c_proj(attended)
        return x + self.mlp(self.norm_2(x))


class DiagonalInjection(nn.Module):
    """h · exp(−Δ·exp(A)) + Δ · (e Bᵀ), with Δ = softplus(dt_bias)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(width))
        self.dt_bias = nn.Parameter(torch.zeros(width))
        self.B = nn.Parameter(torch.eye(width))

    def forward(self, hidden: Tensor, injected: Tensor) -> Tensor:
        step = F.softplus(self.dt_bias)
        return hidden * torch.exp(-step * torch.exp(self.A_log)) + step * (injected @ self.B.T)


class LinearInjection(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.adapter = nn.Linear(2 * width, width, bias=False)

    def forward(self, hidden: Tensor, injected: Tensor) -> Tensor:
        return self.adapter(torch.cat([hidden, injected], dim=-1))


class Sum(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, injected: Tensor) -> Tensor:
        return hidden + injected


INJECTIONS = {"diagonal": DiagonalInjection, "linear": LinearInjection, "add": Sum}


class ParcaeForCausalLM(RecurrentModel):
    config_class = ParcaeConfig
    kinds = ("parcae",)
    layer_class = ParcaeLayer
    start_field, keeps_tokens = "state_init", True
    _no_split_modules = ["ParcaeLayer"]  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = [r"^freqs_cis$"]  # noqa: RUF012

    def __init__(self, config: ParcaeConfig) -> None:
        super().__init__(config)
        if config.prelude_norm:
            self.transformer["ln_prelude"] = RMSNorm(config.n_embd, config.norm_eps)
        self.transformer["C"] = nn.Linear(config.n_embd, config.n_embd, bias=False)
        values = (config.num_key_value_heads or 0) * config.head_dim
        tables = {str(number): nn.Embedding(config.vocab_size, values) for number in config.value_tables}
        self.value_embeds = nn.ModuleDict(tables)
        self.rotary = RotaryTable(config.rope_base, config.head_dim, "neighbours")
        self.post_init()

    @classmethod
    def check_kind(cls, fields: dict[str, Any], config: ParcaeConfig, kind: str, shapes: dict[str, Shape]) -> None:
        super().check_kind(fields, config, kind, shapes)
        config.value_tables, config.value_gates = recognition.parcae_values_in(config, shapes)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """As transformers'; the layers' tables have a row for each token too."""
        embeddings: Any = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        tables: Any = self.value_embeds
        for name, table in tables.items():
            trained = table.weight.requires_grad
            resized = self._get_resized_embeddings(table, len(embeddings.weight), mean_resizing=mean_resizing)
            tables[name] = resized.requires_grad_(trained)
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DiagonalInjection):
            init.zeros_(module.A_log)
            init.zeros_(module.dt_bias)
            init.eye_(module.B)

    def key_heads(self, num_loops: int | None = None) -> int:
        core = (num_loops or self.num_loops) * self.config.n_layers_in_recurrent_block  # where no heads share their keys
        return super().key_heads(num_loops) + core * (self.config.num_attention_heads - self.config.num_key_value_heads)

    def make_adapter(self, config: ParcaeConfig) -> nn.Module:
        return INJECTIONS[config.injection_type](config.n_embd)

    def make_layer(self, config: ParcaeConfig, number: int) -> LoopedLayer:
        return ParcaeLayer(config, number)

    def embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if input_ids is None and inputs_embeds is not None and len(self.value_embeds):
            raise ValueError("inputs_embeds without input_ids: Parcae looks the tokens up again in its layers")
        return super().embedded(input_ids, inputs_embeds)

    def make_rotary(self, position_ids: Tensor, length: int, input_ids: Tensor | None = None) -> Any:
        """cos, sin and the token ids."""
        if input_ids is None:
            if len(self.value_embeds):
                raise ValueError("Parcae's readout needs the tokens' ids")
            input_ids = torch.zeros_like(position_ids)
        return (*self.rotary(position_ids, length, torch.float32), input_ids)

    def ids_in(self, rotary: Any) -> Tensor:
        return rotary[2]

    def layer_inputs(self, rotary: Any, number: int) -> Any:
        cos, sin, input_ids = rotary
        used = number in self.config.value_tables and number in self.config.value_gates
        return cos, sin, self.value_embeds[str(number)](input_ids) if used else None

    def inject(self, state: LoopState) -> Tensor:
        return self.transformer["adapter"](state.hidden, state.tokens.injected)

    def after_prelude(self, x: Tensor) -> Tensor:
        return self.transformer["ln_prelude"](x) if self.config.prelude_norm else x

    def before_coda(self, latents: Tensor) -> Tensor:
        return self.transformer["C"](latents)

    def head(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        logits, cap = super().head(hidden, tokens).float(), self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @property
    def has_initial_state(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.config.state_init == "like-init"


AutoModelForCausalLM.register(ParcaeConfig, ParcaeForCausalLM, exist_ok=True)
