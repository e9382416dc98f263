"""Models with a prelude, a core block that is applied loop after loop, and a coda: Huginn, the retrofitted ones, Parcae.

    begin     embeddings × scale, prelude                     x = P(s · E[tokens])
    advance   core block on state and prelude output          h ← C(inject(h, x))
    readout   coda, final norm                                ln_f(coda(h))

The loops start from a latent state: zero, or drawn. A family says what its layers are, how the prelude's output is injected,
and what else stands between the parts.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from loopcd.models.cache import LoopCache
from loopcd.models.coda import CodaModel, slots_of
from loopcd.models.layers import LoopedLayer, RMSNorm, RotaryTable, init_weights
from loopcd.models.layout import is_watched
from loopcd.models.slots import Span
from loopcd.models.stages import LoopState, Pass


class RecurrentModel(CodaModel):
    """A family derives from this, sets `rotary`, and calls `post_init` at the end of its constructor."""

    base_model_prefix = "transformer"
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}  # noqa: RUF012
    loops_field = "mean_recurrence"
    has_initial_state = True
    start_field: ClassVar[str] = ""  # where the configuration says from what the loops start, if it does
    keeps_tokens: ClassVar[bool] = False  # True where later stages look the tokens up again
    layer_class: ClassVar[type[LoopedLayer]]
    rotary: RotaryTable

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layers_in = (config.n_layers_in_prelude, config.n_layers_in_recurrent_block, config.n_layers_in_coda)
        layers = [self.make_layer(config, number) for number in range(sum(self.layers_in))]
        first, last = self.layers_in[0], sum(self.layers_in[:2])
        self._first_layer = {"prelude": 0, "core_block": first, "coda": last}
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "prelude": nn.ModuleList(layers[:first]),
                "adapter": self.make_adapter(config),
                "core_block": nn.ModuleList(layers[first:last]),
                "coda": nn.ModuleList(layers[last:]),
                "ln_f": RMSNorm(config.n_embd, config.norm_eps),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer["wte"]

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.transformer["wte"] = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As transformers'; the number of rows has two names in some configurations, of which it knows one."""
        resized = super().resize_token_embeddings(*args, **kwargs)
        if hasattr(self.config, "padded_vocab_size"):
            self.config.padded_vocab_size = self.config.vocab_size
        return resized

    def _init_weights(self, module: nn.Module) -> None:
        init_weights(module, self.config.initial_std)

    # -- what a family may say otherwise ------------------------------------------------------------------------------

    def make_layer(self, config: Any, number: int) -> LoopedLayer:
        """The layer `number`, counted over prelude, core and coda."""
        return self.layer_class(config)

    def make_adapter(self, config: Any) -> nn.Module:
        return nn.Linear(2 * config.n_embd, config.n_embd, bias=False)

    def inject(self, state: LoopState) -> Tensor:
        """What the core block reads: the latent, and what the prelude made of the tokens."""
        assert state.tokens.injected is not None
        return self.transformer["adapter"](torch.cat([state.hidden, state.tokens.injected], dim=-1))

    def after_prelude(self, x: Tensor) -> Tensor:
        return x

    def before_coda(self, latents: Tensor) -> Tensor:
        return latents

    def layer_inputs(self, rotary: Any, number: int) -> Any:
        """What the layer `number`, counted over prelude, core and coda, gets beside its input: the positions."""
        return rotary

    def make_rotary(self, position_ids: Tensor, length: int, input_ids: Tensor | None = None) -> Any:
        return self.rotary(position_ids, length, torch.float32)

    # -- where the slots are: prelude, coda, then the core loop by loop ------------------------------------------------

    def loop_slots(self, loop: int) -> range:
        prelude, core, coda = self.layers_in
        first = prelude + coda + (loop - 1) * core
        return range(first, first + core)

    @property
    def coda_slots(self) -> range:
        prelude, _, coda = self.layers_in
        return range(prelude, prelude + coda)

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
        x = self.embedded(input_ids, None if inputs_embeds is None else inputs_embeds.clone())
        x = x if self.config.embed_scale == 1 else x * self.config.embed_scale
        tokens, position_ids = self.open_pass(x, cache, attention_mask, position_ids)
        rotary = self.make_rotary(position_ids, tokens.length, input_ids)
        if self.keeps_tokens and cache is not None and input_ids is not None:
            cache.remember(tokens.span, input_ids)
        slots = slots_of(cache, range(self.layers_in[0]))
        home = x.device  # where the layers are spread over devices, a stage gives its result where it was given
        x = self.after_prelude(self.through("prelude", x, rotary, tokens.mask, slots, tokens.span)).to(home)
        if init_state is None:
            init_state = self.initial_state(x, position_ids, init_seed)
        return LoopState(init_state, 0, Pass(tokens.span, cache, tokens.mask, rotary, injected=x))

    def advance(self, state: LoopState) -> LoopState:
        tokens = state.tokens
        slots = slots_of(tokens.cache, self.loop_slots(state.loop + 1))
        mask = self.enter(tokens, state.loop + 1)
        x = self.through("core_block", self.inject(state), tokens.rotary, mask, slots, tokens.span)
        return LoopState(x.to(state.hidden.device), state.loop + 1, tokens)

    def through_coda(
        self, x: Tensor, rotary: Any, mask: Tensor | None, slots: Sequence[Any], span: Span, last: bool = False
    ) -> Tensor:
        read = self.through("coda", self.before_coda(x), rotary, mask, slots, span, last)
        return self.transformer["ln_f"](read).to(x.device)

    def through(
        self, part: str, x: Tensor, rotary: Any, mask: Tensor | None, slots: Sequence[Any], span: Span, last: bool = False
    ) -> Tensor:
        """The part's layers one after the other; with `last`, what the last one makes of the last token only."""
        layers: Any = self.transformer[part]
        first = self._first_layer[part]
        spare = self._spare(x, layers)
        for index, (layer, slot) in enumerate(zip(layers, slots, strict=True)):
            inputs = self.layer_inputs(rotary, first + index)
            x = layer(x, inputs, mask, slot, span, last and index == len(layers) - 1, spare)
        return x

    def _spare(self, x: Tensor, layers: Sequence[nn.Module]) -> bool:
        """Whether layers may write over their inputs: all of these are made for them alone, unless somebody looks on.

        It saves kernels, which are what a GPU waits for; a CPU does not care.
        """
        if x.is_cpu or not self.layer_class.can_spare or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        if any(type(layer) is not self.layer_class for layer in layers):
            return False
        # it is seen by the layers, their parts, and what made their input: looked at anew, since layers can be replaced
        seen: Any = [part for module in (self.transformer, *layers) for part in (module, *module._modules.values())]
        return not any(map(is_watched, seen))

    def initial_state(self, like: Tensor, position_ids: Tensor, seed: int | Sequence[int] | None) -> Tensor:
        """Zero; or by `seed` the Gaussian, cut off at three deviations, that training starts from: a fixed draw a position."""
        if seed is None:
            return torch.zeros_like(like)
        if not self.has_initial_state:
            field = self.start_field
            raise ValueError(f"init_seed={seed}: with {field}={getattr(self.config, field)!r} nothing is drawn")
        seeds: list[Any] = list(seed) if isinstance(seed, Sequence) else [seed]
        if any(isinstance(each, bool) or not isinstance(each, int) for each in seeds):
            raise ValueError(f"init_seed={seed!r}: a whole number, or one a row")
        if len(seeds) not in (1, like.shape[0]):
            raise ValueError(f"init_seed has {len(seeds)} seeds for {like.shape[0]} rows: give one, or one a row")
        drawn_for = range(int(position_ids.min()), int(position_ids.max()) + 1)
        drawn = [_drawn_states(each, drawn_for, like.shape[-1], self.config.initial_std) for each in seeds]
        table = torch.stack(drawn).to(like)  # [1 or batch, positions, width]
        rows = torch.arange(len(seeds), device=like.device)[:, None]
        return (table[rows, position_ids - drawn_for.start] * self.config.embed_scale).expand_as(like)


DRAWN_AT_ONCE = 64  # positions


def _drawn_states(seed: int, positions: range, width: int, std: float) -> Tensor:
    """[positions, width] of noise in which a position's draw depends on the seed and the position alone."""
    first, last = positions.start // DRAWN_AT_ONCE, (positions.stop - 1) // DRAWN_AT_ONCE
    blocks = torch.cat([_drawn_block(seed, block, width, std) for block in range(first, last + 1)])
    return blocks[positions.start - first * DRAWN_AT_ONCE :][: len(positions)]


@lru_cache(maxsize=16)
def _drawn_block(seed: int, block: int, width: int, std: float) -> Tensor:
    generator = torch.Generator("cpu").manual_seed((seed * 1_000_003 + block) % 2**63)
    drawn = torch.empty(DRAWN_AT_ONCE, width, dtype=torch.float32, device="cpu")  # whatever torch's defaults are
    return nn.init.trunc_normal_(drawn, std=std, a=-3 * std, b=3 * std, generator=generator)
