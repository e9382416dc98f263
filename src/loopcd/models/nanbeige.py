"""Nanbeige 4.2 (model type `nanbeige`; 3B, base and chat): Llama's layers, the whole stack applied twice.

The stages are those of `stacked.py`. With `skip_loop_final_norm` the loops hand on their state unnormed, and only the head's
reading is normed.
"""

from torch import Tensor
from transformers import AutoModelForCausalLM

from loopcd.models.configs import NanbeigeConfig
from loopcd.models.layers import LlamaAttention, LlamaMLP, LoopedLayer, RMSNorm
from loopcd.models.stacked import StackedModel


class NanbeigeLayer(LoopedLayer):
    """A norm before each half, as in Llama."""

    def __init__(self, config: NanbeigeConfig) -> None:
        super().__init__(config)
        self.self_attn = LlamaAttention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn.project(self.input_layernorm(x), cos, sin)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.self_attn.o_proj(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


class NanbeigeForCausalLM(StackedModel):
    config_class = NanbeigeConfig
    kinds = ("nanbeige",)
    layer_class = NanbeigeLayer
    _no_split_modules = ["NanbeigeLayer"]  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = [r"rotary_emb\.inv_freq$"]  # noqa: RUF012

    def __init__(self, config: NanbeigeConfig) -> None:
        super().__init__(config)
        self.post_init()

    @property
    def norm_between_loops(self) -> bool:
        return not self.config.skip_loop_final_norm


AutoModelForCausalLM.register(NanbeigeConfig, NanbeigeForCausalLM, exist_ok=True)
