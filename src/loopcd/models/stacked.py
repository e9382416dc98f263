"""Models whose whole stack of layers is applied loop after loop: Ouro, Nanbeige.

    begin     embeddings                                       h = E[tokens]
    advance   all layers, then the final norm                  h ← norm(layers(h))
    readout   the state itself, which is normed already

Where a model norms only what its head reads (`norm_between_loops` False), advance leaves the norm out and readout applies it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from loopcd.models.cache import LoopCache
from loopcd.models.layers import LoopedLayer, RMSNorm, RotaryTable, init_weights
from loopcd.models.stages import LoopedModel, LoopState, Pass


class Stack(nn.Module):
    """The parameters under the public checkpoints' prefix `model.`; the stages below run them."""

    def __init__(self, config: Any, layer_class: type[LoopedLayer]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layer_class(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class StackedModel(LoopedModel):
    """A family derives from this, names its layers, and calls `post_init` at the end of its constructor."""

    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    layer_class: ClassVar[type[LoopedLayer]]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Stack(config, self.layer_class)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rotary = RotaryTable(config.rope_base, config.head_dim, "halves")

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def _init_weights(self, module: nn.Module) -> None:
        init_weights(module, self.config.initializer_range)

    @property
    def norm_between_loops(self) -> bool:
        return True

    def loop_slots(self, loop: int) -> range:
        layers = len(self.model.layers)
        return range((loop - 1) * layers, loop * layers)

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
        """The loops start from the embeddings: there is no initial state to draw or give."""
        if init_seed is not None or init_state is not None:
            family = type(self).__name__.removesuffix("ForCausalLM")
            raise ValueError(
                f"init_seed and init_state are for models that start from a latent state (Huginn), not for {family}"
            )
        x = self.embedded(input_ids, inputs_embeds)
        tokens, position_ids = self.open_pass(x, cache, attention_mask, position_ids)
        rotary = self.rotary(position_ids, tokens.length, x.dtype)
        return LoopState(x, 0, Pass(tokens.span, cache, tokens.mask, rotary))

    def advance(self, state: LoopState) -> LoopState:
        x, tokens, loop = state.hidden, state.tokens, state.loop + 1
        mask = self.enter(tokens, loop)
        for layer, index in zip(self.model.layers, self.loop_slots(loop), strict=True):
            x = layer(x, tokens.rotary, mask, None if tokens.cache is None else tokens.cache.slot(index), tokens.span)
        x = self.model.norm(x) if self.norm_between_loops else x
        return LoopState(x.to(state.hidden.device), loop, tokens)

    def read_latents(self, latents: Tensor, input_ids: Tensor | None = None) -> Tensor:
        return latents if self.norm_between_loops else self.model.norm(latents).to(latents.device)
