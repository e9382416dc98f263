"""Huginn (model type `huginn_raven`): a prelude, a core block applied loop after loop, a coda.

    begin     embeddings × √width, prelude                    x = P(√d · E[tokens])
    advance   core block on state and prelude output          h ← C(A[h, x])
    readout   shared final norm, coda, the same norm          ln_f(coda(ln_f(h)))

The stages are those of `recurrent.py`. Huginn's own are the layer, and that its final norm stands on both sides of the coda.
"""

from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers import initialization as init

from loopcd.models import recognition
from loopcd.models.checkpoint import Shape
from loopcd.models.configs import HuginnConfig, RavenConfig
from loopcd.models.layers import LoopedLayer, RMSNorm, RotaryTable, add_product, rotate_complex, rotate_neighbours
from loopcd.models.recurrent import RecurrentModel


class HuginnAttention(nn.Module):
    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.n_heads, config.num_key_value_heads or 0, config.head_dim or 0
        self.Wqkv = nn.Linear(config.n_embd, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, self.heads, self.head_dim)) if config.qk_bias else None
        self.proj = nn.Linear(self.heads * self.head_dim, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, time, head_dim], with the positions in them; these are cos and sin, or
        complex numbers alone."""
        rows, time, _ = x.shape
        own: Any = self._modules
        qkv = own["Wqkv"](x).view(rows, time, -1, self.head_dim)  # [rows, time, heads + 2 kv_heads, head_dim]
        qk, value = torch.split_with_sizes(qkv, (self.heads + self.kv_heads, self.kv_heads), dim=2)
        bias = self._bias()
        if sin is None:
            qk = rotate_complex(_biased(qk, bias), cos)
        else:
            qk = rotate_neighbours((qk if bias is None else qk + bias).float(), cos, sin)
        query, key = torch.split_with_sizes(qk.to(value.dtype).transpose(1, 2), (self.heads, self.kv_heads), dim=1)
        return query, key, value.transpose(1, 2)

    def _bias(self) -> Tensor | None:
        """[heads + kv_heads, head_dim]; the checkpoint has as many rows for the keys as for the queries."""
        bias = self.qk_bias
        if bias is None:
            return None
        flat = bias.view(-1, self.head_dim)
        return flat if self.kv_heads == self.heads else flat[: self.heads + self.kv_heads]


def _biased(qk: Tensor, bias: Tensor | None) -> Tensor:
    """In float32, by one kernel."""
    if qk.dtype == torch.float32:
        return qk if bias is None else qk + bias
    made = torch.empty(qk.shape, dtype=torch.float32, device=qk.device)
    return made.copy_(qk) if bias is None else torch.add(qk, bias, out=made)


class HuginnMLP(nn.Module):
    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.n_embd, 2 * config.intermediate_size, bias=False)
        self.proj = nn.Linear(config.intermediate_size, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._modules["proj"](self.gated(x))  # pyright: ignore[reportOptionalCall]

    def gated(self, x: Tensor) -> Tensor:
        own: Any = self._modules
        gate, up = own["fc"](x).chunk(2, dim=-1)
        return F.silu(gate) * up


class HuginnLayer(LoopedLayer):
    """The sandwich: each norm stands outside the residual sum."""

    can_spare = True

    def __init__(self, config: HuginnConfig) -> None:
        super().__init__(config)
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (RMSNorm(config.n_embd, config.norm_eps) for _ in range(4))
        self.attn = HuginnAttention(config)
        self.mlp = HuginnMLP(config)

    def before(self, x: Tensor, cos: Tensor, sin: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        own: Any = self._modules
        return own["attn"](own["norm_1"](x), cos, sin)  # called: its bias may be kept elsewhere until then

    def after(self, x: Tensor, attended: Tensor, spare: bool = False) -> Tensor:
        own: Any = self._modules
        mlp, proj = own["mlp"], own["attn"]._modules["proj"]
        if spare:
            x = own["norm_2"](add_product(x, proj, attended))
            return own["norm_4"](add_product(x, mlp.proj, mlp.gated(own["norm_3"](x))))
        x = own["norm_2"](proj(attended) + x)
        return own["norm_4"](mlp(own["norm_3"](x)) + x)


class HuginnForCausalLM(RecurrentModel):
    config_class = HuginnConfig
    kinds = ("huginn",)
    layer_class = HuginnLayer
    _no_split_modules = ["HuginnLayer"]  # noqa: RUF012
    # the stored rotary table may have been rounded to bfloat16: it is computed in float32 instead
    _keys_to_ignore_on_load_unexpected = [r"^freqs_cis$"]  # noqa: RUF012

    def __init__(self, config: HuginnConfig) -> None:
        super().__init__(config)
        self.rotary = RotaryTable(config.rope_base, config.head_dim or 0, "neighbours")
        self.post_init()

    @classmethod
    def check_kind(cls, fields: dict[str, Any], config: HuginnConfig, kind: str, shapes: dict[str, Shape]) -> None:
        super().check_kind(fields, config, kind, shapes)
        recognition.check_huginn(fields)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config: HuginnConfig = self.config  # pyright: ignore[reportAssignmentType]
        std = config.initial_std
        depth = config.n_layers_in_prelude + config.n_layers_in_coda
        depth += config.n_layers_in_recurrent_block * config.mean_recurrence
        if isinstance(module, HuginnAttention | HuginnMLP):
            init.normal_(module.proj.weight, std=std / sqrt(2 * depth))
            init.normal_(module.Wqkv.weight if isinstance(module, HuginnAttention) else module.fc.weight, std=std)
            if isinstance(module, HuginnAttention) and module.qk_bias is not None:
                init.zeros_(module.qk_bias)
        elif isinstance(module, RMSNorm):
            init.ones_(module.weight)
        elif module in (self.transformer["wte"], self.transformer["adapter"], self.lm_head):
            init.normal_(module.weight, std=std)  # pyright: ignore[reportArgumentType]

    def make_rotary(self, position_ids: Tensor, length: int, input_ids: Tensor | None = None) -> Any:
        core: Any = self.transformer["core_block"]
        if position_ids.device.type == "mps" or torch.is_grad_enabled() or core[0].compiled is not None:
            return super().make_rotary(position_ids, length, input_ids)
        return (self.rotary.turns(position_ids, length),)  # fewer kernels; on a CPU several times as fast, too

    def before_coda(self, latents: Tensor) -> Tensor:
        return self.transformer["ln_f"](latents)


AutoModelForCausalLM.register(HuginnConfig, HuginnForCausalLM, exist_ok=True)
