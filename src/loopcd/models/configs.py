"""The configurations of Huginn and Ouro: the public checkpoints' `config.json`, field for field.

They are light, so that importing loopcd is; making one brings in its model, which registers itself with the Auto classes.
"""

from importlib import import_module
from math import sqrt
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters


@strict
class HuginnConfig(PreTrainedConfig):
    """The public checkpoint's `config.json`, field for field; what only its training code reads is kept, not used."""

    model_type = "huginn_raven"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "num_attention_heads": "n_heads",
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "block_size",
    }

    n_embd: int = 5280
    n_heads: int = 55
    num_key_value_heads: int | None = None
    n_layers: int | None = None  # of prelude, core and coda together
    n_layers_in_prelude: int = 2
    n_layers_in_recurrent_block: int = 4
    n_layers_in_coda: int = 2
    mean_recurrence: int = 32
    intermediate_size: int = 17920
    block_size: int = 4096
    vocab_size: int = 65536
    head_dim: int | None = None
    norm_eps: float = 1e-6
    qk_bias: bool = True
    rope_base: int | float = 50_000
    tie_embeddings: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    initializer_range: float | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.n_heads < 1 or self.n_embd % self.n_heads or (self.n_embd // self.n_heads) % 2:
            raise ValueError(f"n_embd={self.n_embd} does not divide into n_heads={self.n_heads} heads of even size")
        self.head_dim = self.n_embd // self.n_heads
        self.num_key_value_heads = self.num_key_value_heads or self.n_heads
        if self.n_heads % self.num_key_value_heads:
            raise ValueError(f"n_heads={self.n_heads} is no multiple of num_key_value_heads={self.num_key_value_heads}")
        if self.mean_recurrence < 1:
            raise ValueError(f"mean_recurrence={self.mean_recurrence}: at least one loop")
        self.n_layers = self.n_layers_in_prelude + self.n_layers_in_recurrent_block + self.n_layers_in_coda
        # a saved untied model carries both names of the same switch; either says untied
        self.tie_embeddings = self.tie_word_embeddings = self.tie_embeddings and self.tie_word_embeddings
        super().__post_init__(**kwargs)
        import_module("loopcd.models.huginn")

    @property
    def initial_std(self) -> float:
        return sqrt(2 / (5 * self.n_embd))


@strict
class OuroConfig(PreTrainedConfig):
    """The public checkpoints' `config.json`; sliding windows, which no public checkpoint uses, are refused."""

    model_type = "ouro"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    default_theta = 10_000.0

    vocab_size: int = 49152
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 65536
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    total_ut_steps: int = 4
    early_exit_threshold: float = 1.0
    tie_word_embeddings: bool = False
    use_cache: bool = True
    use_sliding_window: bool = False
    rope_parameters: RopeParameters | dict | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        heads, self.num_key_value_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads < 1 or heads % self.num_key_value_heads:
            raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={self.num_key_value_heads}")
        self.head_dim = self.head_dim or self.hidden_size // heads
        if self.head_dim % 2:
            raise ValueError(f"hidden_size={self.hidden_size} gives {heads} heads of odd size {self.head_dim}")
        if self.total_ut_steps < 1:
            raise ValueError(f"total_ut_steps={self.total_ut_steps}: at least one loop")
        if self.use_sliding_window:
            raise ValueError("use_sliding_window=True: Ouro is supported with full attention only")
        if self.hidden_act != "silu":
            raise ValueError(f"hidden_act={self.hidden_act!r}: Ouro uses 'silu'")
        super().__post_init__(**kwargs)
        import_module("loopcd.models.ouro")
        rope_type = (self.rope_parameters or {}).get("rope_type", "default")
        if rope_type != "default":
            raise ValueError(f"rope_type={rope_type!r}: Ouro is supported with plain rotary positions only")

    @property
    def rope_base(self) -> float:
        return float((self.rope_parameters or {}).get("rope_theta") or self.default_theta)
