"""Huginn (model type `huginn_raven`): a prelude, a core block applied loop after loop, a coda.

    begin     embeddings × √width, prelude                    x = P(√d · E[tokens])
    advance   core block on state and prelude output          h ← C(A[h, x])
    readout   shared final norm, coda, the same norm          ln_f(coda(ln_f(h)))

The coda attends, so a readout depends on the readouts before it; `coda` says what an early one sees of them.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers import initialization as init

from loopcd.models.cache import LoopCache
from loopcd.models.coda import CodaModel, slots_of
from loopcd.models.configs import HuginnConfig
from loopcd.models.layers import LoopedLayer, RMSNorm, RotaryTable, rotate_neighbours
from loopcd.models.slots import Span
from loopcd.models.stages import LoopState, Pass, checked_loops


class HuginnAttention(nn.Module):
    def __init__(self, config: HuginnConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.n_heads, config.num_key_value_heads or 0, config.head_dim or 0
        self.Wqkv = nn.Linear(config.n_embd, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, self.heads, self.head_dim)) if config.qk_bias else None
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, time, head_dim], with the positions in them."""
        rows, time, _ = x.shape
        rotated = self.heads + self.kv_heads
        qkv = self.Wqkv(x).view(rows, time, -1, self.head_dim)  # [rows, time, heads + 2 kv_heads, head_dim]
        qk, value = qkv[:, :, :rotated], qkv[:, :, rotated:]
        if self.qk_bias is not None:
            qk = qk + self._bias()
        qk = rotate_neighbours(qk.float(), cos, sin).to(value.dtype).transpose(1, 2)
        return qk[:, : self.heads], qk[:, self.heads :], value.transpose(1, 2)

    def _bias(self) -> Tensor:
        """[heads + kv_heads, head_dim]; the checkpoint has as many rows for the keys as for the queries."""
        assert self.qk_bias is not None
        flat = self.qk_bias.view(-1, self.head_dim)
        return flat if self.kv_heads == self.heads else flat[: self.heads + self.kv_heads]


class HuginnMLP(nn.Module):
    def __init__(self, config: HuginnConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.n_embd, 2 * config.intermediate_size, bias=False)
        self.proj = nn.Linear(config.intermediate_size, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        both = self.fc(x)
        half = both.shape[-1] // 2
        return self.proj(F.silu(both[..., :half]) * both[..., half:])


class HuginnLayer(LoopedLayer):
    """The sandwich: each norm stands outside the residual sum."""

    def __init__(self, config: HuginnConfig) -> None:
        super().__init__(config)
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (RMSNorm(config.n_embd, config.norm_eps) for _ in range(4))
        self.attn = HuginnAttention(config)
        self.mlp = HuginnMLP(config)

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.attn.project(self.norm_1(x), cos, sin)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.norm_2(self.attn.proj(attended) + x)
        return self.norm_4(self.mlp(self.norm_3(x)) + x)


class HuginnForCausalLM(CodaModel):
    config_class = HuginnConfig
    base_model_prefix = "transformer"
    _no_split_modules = ["HuginnLayer"]  # noqa: RUF012
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}  # noqa: RUF012
    # the stored rotary table may have been rounded to bfloat16: it is computed in float32 instead
    _keys_to_ignore_on_load_unexpected = [r"^freqs_cis$"]  # noqa: RUF012
    has_initial_state = True

    def __init__(self, config: HuginnConfig) -> None:
        super().__init__(config)
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "prelude": nn.ModuleList(HuginnLayer(config) for _ in range(config.n_layers_in_prelude)),
                "adapter": nn.Linear(2 * config.n_embd, config.n_embd, bias=False),
                "core_block": nn.ModuleList(HuginnLayer(config) for _ in range(config.n_layers_in_recurrent_block)),
                "coda": nn.ModuleList(HuginnLayer(config) for _ in range(config.n_layers_in_coda)),
                "ln_f": RMSNorm(config.n_embd, config.norm_eps),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.rotary = RotaryTable(config.rope_base, config.n_embd // config.n_heads, "neighbours")
        self.layers_in = (config.n_layers_in_prelude, config.n_layers_in_recurrent_block, config.n_layers_in_coda)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer["wte"]

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.transformer["wte"] = value

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

    # -- where the slots are: prelude, coda, then the core loop by loop ------------------------------------------------

    @property
    def num_loops(self) -> int:
        return self.config.mean_recurrence

    def set_num_loops(self, num_loops: int) -> None:
        self.config.mean_recurrence = checked_loops(num_loops, 0)

    def loop_slots(self, loop: int) -> Sequence[int]:
        prelude, core, coda = self.layers_in
        first = prelude + coda + (loop - 1) * core
        return range(first, first + core)

    def slot_count(self, num_loops: int | None = None) -> int:
        return self.loop_slots(num_loops or self.num_loops).stop  # pyright: ignore[reportAttributeAccessIssue]

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
        """`init_seed` draws the initial state (one seed, or one a row), `init_state` gives it; zero otherwise."""
        x = self.embedded(input_ids, inputs_embeds) * sqrt(self.config.n_embd)
        tokens, position_ids = self.open_pass(x, cache, attention_mask, position_ids)
        rotary = self.make_rotary(position_ids, tokens.length)
        slots = range(self.layers_in[0])
        home = x.device
        x = _through(self.transformer["prelude"], x, rotary, tokens.mask, slots_of(cache, slots), tokens.span).to(home)
        if init_state is None:
            init_state = self.initial_state(x, position_ids, init_seed)
        return LoopState(init_state, 0, Pass(tokens.span, cache, tokens.mask, rotary, injected=x))

    def advance(self, state: LoopState) -> LoopState:
        tokens = state.tokens
        assert tokens.injected is not None
        x = self.transformer["adapter"](torch.cat([state.hidden, tokens.injected], dim=-1))
        slots = slots_of(tokens.cache, self.loop_slots(state.loop + 1))
        mask = self.enter(tokens, state.loop + 1)
        x = _through(self.transformer["core_block"], x, tokens.rotary, mask, slots, tokens.span)
        return LoopState(x.to(state.hidden.device), state.loop + 1, tokens)

    def through_coda(
        self, x: Tensor, rotary: Any, mask: Tensor | None, slots: Sequence[Any], span: Span, last: bool = False
    ) -> Tensor:
        norm = self.transformer["ln_f"]
        return norm(_through(self.transformer["coda"], norm(x), rotary, mask, slots, span, last)).to(x.device)

    def make_rotary(self, position_ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
        return self.rotary(position_ids, length, torch.float32)

    @property
    def coda_slots(self) -> range:
        prelude, _, coda = self.layers_in
        return range(prelude, prelude + coda)

    def initial_state(self, like: Tensor, position_ids: Tensor, seed: int | Sequence[int] | None) -> Tensor:
        """Zero; or by `seed` the Gaussian, cut off at three deviations, that training starts from: a fixed draw a position."""
        if seed is None:
            return torch.zeros_like(like)
        seeds = [seed] if isinstance(seed, int) else list(seed)
        if len(seeds) not in (1, like.shape[0]):
            raise ValueError(f"init_seed has {len(seeds)} seeds for {like.shape[0]} rows: give one, or one a row")
        drawn_for = range(int(position_ids.min()), int(position_ids.max()) + 1)
        drawn = [_drawn_states(each, drawn_for, like.shape[-1], self.config.initial_std) for each in seeds]
        table = torch.stack(drawn).to(like)  # [1 or batch, positions, width]
        rows = torch.arange(len(seeds), device=like.device)[:, None]
        return (table[rows, position_ids - drawn_for.start] * sqrt(self.config.n_embd)).expand_as(like)


def _through(
    layers: Any,
    x: Tensor,
    rotary: Any,
    mask: Tensor | None,
    slots: Sequence[Any],
    span: Span,
    last: bool = False,
) -> Tensor:
    """The layers one after the other; with `last`, what the last one makes of the last token only."""
    for index, (layer, slot) in enumerate(zip(layers, slots, strict=True)):
        x = layer(x, rotary, mask, slot, span, last and index == len(layers) - 1)
    return x


DRAWN_AT_ONCE = 64  # positions


def _drawn_states(seed: int, positions: range, width: int, std: float) -> Tensor:
    """[positions, width] of noise in which a position's draw depends on the seed and the position alone."""
    first, last = positions.start // DRAWN_AT_ONCE, (positions.stop - 1) // DRAWN_AT_ONCE
    blocks = torch.cat([_drawn_block(seed, block, width, std) for block in range(first, last + 1)])
    return blocks[positions.start - first * DRAWN_AT_ONCE :][: len(positions)]


@lru_cache(maxsize=16)
def _drawn_block(seed: int, block: int, width: int, std: float) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + block) % 2**63)
    return nn.init.trunc_normal_(torch.empty(DRAWN_AT_ONCE, width), std=std, a=-3 * std, b=3 * std, generator=generator)


AutoModelForCausalLM.register(HuginnConfig, HuginnForCausalLM, exist_ok=True)
