"""The configurations of the families: the public checkpoints' `config.json`, field for field, also when they are saved.

They are light, so that importing loopcd is; making one brings in its model, which registers itself with the Auto classes.
"""

from importlib import import_module
from math import sqrt
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from loopcd.models import recognition


def _with_public_rope(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields as the public code reads them: `rope_theta` and `rope_scaling`, which transformers 5 keeps as one."""
    rope = dict(fields.pop("rope_parameters", None) or {})
    fields["rope_theta"] = rope.pop("rope_theta", None)
    fields["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    return fields


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

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Of the two families that share the model type, the one whose configuration these fields are."""
        kind = recognition.raven_kind(config_dict)
        if kind == "retrofit":
            return RetrofitConfig.from_dict(config_dict, **kwargs)
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        fields.pop("tie_word_embeddings", None)  # the public class would take it twice: it is tie_embeddings
        return fields

    @property
    def initial_std(self) -> float:
        return sqrt(2 / (5 * self.n_embd))

    @property
    def embed_scale(self) -> float:
        return sqrt(self.n_embd)


@strict
class RetrofitConfig(PreTrainedConfig):
    """Retrofitted recurrence: Huginn's fields and model type, with the base model's rotary positions.

    Which base model's layers it has (`layers_like`) no public `config.json` says: it is read off the weights.
    """

    model_type = "huginn_raven"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    attribute_map = {"num_attention_heads": "n_heads", "hidden_size": "n_embd", "num_hidden_layers": "n_layers"}  # noqa: RUF012
    default_theta = 500_000.0

    n_embd: int = 2048
    n_heads: int = 32
    num_key_value_heads: int | None = None
    n_layers: int | None = None
    n_layers_in_prelude: int = 4
    n_layers_in_recurrent_block: int = 6
    n_layers_in_coda: int = 4
    mean_recurrence: int = 32
    intermediate_size: int = 8192
    vocab_size: int = 128256
    padded_vocab_size: int | None = None
    head_dim: int | None = None
    norm_eps: float = 1e-5
    bias: bool = False  # of the adapter
    qk_bias: bool = False
    block_size: int = 4096  # Huginn's; not used, like rope_base
    max_position_embeddings: int = 131072
    rope_base: int | float = 50_000
    rope_parameters: RopeParameters | dict | None = None
    initial_state_mode: str = "random"
    init_values: dict | None = None
    layers_like: str = "llama"
    tie_embeddings: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.num_key_value_heads = self.num_key_value_heads or self.n_heads
        if self.n_heads < 1 or self.n_heads % self.num_key_value_heads:
            raise ValueError(f"n_heads={self.n_heads} is no multiple of num_key_value_heads={self.num_key_value_heads}")
        self.head_dim = self.head_dim or self.n_embd // self.n_heads
        if self.head_dim % 2:
            raise ValueError(f"n_embd={self.n_embd} and n_heads={self.n_heads} give heads of odd size {self.head_dim}")
        if self.mean_recurrence < 1:
            raise ValueError(f"mean_recurrence={self.mean_recurrence}: at least one loop")
        if self.layers_like not in recognition.RETROFITTED:
            raise ValueError(f"layers_like={self.layers_like!r}: one of {', '.join(recognition.RETROFITTED)}")
        if self.qk_bias:
            raise ValueError("qk_bias=True: retrofitted models have none")
        if self.initial_state_mode not in recognition.START_STATES:
            raise ValueError(f"initial_state_mode={self.initial_state_mode!r}: one of {', '.join(recognition.START_STATES)}")
        self.n_layers = self.n_layers_in_prelude + self.n_layers_in_recurrent_block + self.n_layers_in_coda
        self.vocab_size = self.padded_vocab_size = self.padded_vocab_size or self.vocab_size  # of the embedding and the head
        self.tie_embeddings = self.tie_word_embeddings = self.tie_embeddings and self.tie_word_embeddings
        super().__post_init__(**kwargs)
        import_module("loopcd.models.retrofit")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        if recognition.raven_kind(config_dict) != "retrofit":
            raise ValueError("rope_theta is missing: a retrofitted model has its base model's rotary positions")
        # where only one of the two switches stands there, it is the one that counts
        tied = config_dict.get("tie_embeddings", config_dict.get("tie_word_embeddings", True))
        switches = {"tie_embeddings": tied, "tie_word_embeddings": config_dict.get("tie_word_embeddings", tied)}
        # the converters leave Huginn's special tokens in, which are ordinary ones here, or none
        stale = [name for name in recognition.SPECIAL if config_dict.get(name) in recognition.HUGINN_TOKENS]
        return super().from_dict({**config_dict, **switches, **dict.fromkeys(stale)}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        fields = _with_public_rope(super().to_dict())
        fields.pop("tie_word_embeddings", None)  # as for Huginn
        return fields

    @property
    def rotary_base(self) -> float:
        return float((self.rope_parameters or {}).get("rope_theta") or self.default_theta)

    @property
    def initial_std(self) -> float:
        return float((self.init_values or {}).get("std") or sqrt(2 / (5 * self.n_embd)))

    @property
    def embed_scale(self) -> float:
        """What the converters write is 1; only without any `init_values` it is Huginn's."""
        if self.init_values is None:
            return sqrt(self.n_embd)
        return float(self.init_values.get("embed_scale", 1.0))


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

    def to_dict(self) -> dict[str, Any]:
        return _with_public_rope(super().to_dict())

    @property
    def rope_base(self) -> float:
        return float((self.rope_parameters or {}).get("rope_theta") or self.default_theta)


@strict
class NanbeigeConfig(PreTrainedConfig):
    """The public checkpoints' `config.json`; what the public code has beyond the released models is refused by name."""

    model_type = "nanbeige"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    default_theta = 70_000_000.0

    vocab_size: int = 166144
    hidden_size: int = 3072
    intermediate_size: int = 10752
    num_hidden_layers: int = 22
    num_attention_heads: int = 48
    num_key_value_heads: int | None = 8
    head_dim: int | None = None
    kv_channels: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 262144
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-5
    num_loops: int = 2
    loop_loss_weights: list | None = None
    skip_loop_final_norm: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = True
    rope_parameters: RopeParameters | dict | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        recognition.check_nanbeige({**kwargs, "hidden_act": self.hidden_act})
        heads, self.num_key_value_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads < 1 or heads % self.num_key_value_heads:
            raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={self.num_key_value_heads}")
        self.head_dim = self.head_dim or self.kv_channels or 128  # never hidden_size / heads: the heads are wider
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim}: an even number")
        if self.num_loops < 1:
            raise ValueError(f"num_loops={self.num_loops}: at least one loop")
        if self.loop_loss_weights and len(self.loop_loss_weights) + 1 != self.num_loops:
            raise ValueError(
                f"loop_loss_weights={self.loop_loss_weights} asks for {len(self.loop_loss_weights) + 1} loops, "
                f"num_loops for {self.num_loops}"
            )
        super().__post_init__(**kwargs)
        import_module("loopcd.models.nanbeige")
        rope_type = (self.rope_parameters or {}).get("rope_type", "default")
        if rope_type != "default":
            raise ValueError(f"rope_scaling of type {rope_type!r}: Nanbeige is supported with plain rotary positions only")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        missing = [name for name in ("num_loops", "rope_theta") if recognition.field(config_dict, name) is None]
        if missing:  # the public ports disagree about what is meant then
            raise ValueError(f"{' and '.join(missing)} missing: Nanbeige's configuration has it")
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        return _with_public_rope(super().to_dict())

    @property
    def rope_base(self) -> float:
        return float((self.rope_parameters or {}).get("rope_theta") or self.default_theta)


@strict
class ParcaeConfig(PreTrainedConfig):
    """The public `config.json`: a dataclass written out, without a model type, and saved as such."""

    model_type = "parcae"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    attribute_map = {"hidden_size": "n_embd", "max_position_embeddings": "block_size"}  # noqa: RUF012

    n_embd: int = 768
    num_attention_heads: int = 6
    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    block_size: int = 2048
    vocab_size: int = 32768
    padding_multiple: int = 512
    padded_vocab_size: int | None = None
    rope_settings: dict | None = None
    norm_eps: float = 1e-5
    qk_norm: bool = False
    prelude_norm: bool = False
    logit_softcap: int | float | None = None
    injection_type: str = "diagonal"
    state_init: str = "like-init"
    n_layers_in_prelude: int = 1
    n_layers_in_recurrent_block: int = 4
    n_layers_in_coda: int = 1
    recurrent_embedding_dimension: int | None = None
    recurrent_intermediation_embedding_dimension: int | None = None
    recurrent_num_attention_heads: int | None = None
    mean_recurrence: int = 32
    mean_backprop_depth: int = 8
    tie_embeddings: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        recognition.check_parcae({**kwargs, **{name: getattr(self, name) for name in recognition.PARCAE_CHECKED}})
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        if self.num_attention_heads < 1 or self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is no multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.n_embd % (2 * self.num_attention_heads):
            raise ValueError(f"n_embd={self.n_embd} does not divide into {self.num_attention_heads} heads of even size")
        if self.mean_recurrence < 1:
            raise ValueError(f"mean_recurrence={self.mean_recurrence}: at least one loop")
        self.intermediate_size = self.intermediate_size or 4 * self.n_embd
        inner = self.recurrent_intermediation_embedding_dimension
        self.recurrent_intermediation_embedding_dimension = inner or self.intermediate_size
        self.recurrent_embedding_dimension = self.recurrent_embedding_dimension or self.n_embd
        heads = self.recurrent_num_attention_heads or self.num_attention_heads
        if (self.recurrent_embedding_dimension, heads) != (self.n_embd, self.num_attention_heads):
            raise ValueError(
                f"recurrent_embedding_dimension={self.recurrent_embedding_dimension} with {heads} heads: Parcae is supported "
                f"with a core as wide as the rest, n_embd={self.n_embd} with {self.num_attention_heads} heads"
            )
        rows = -(-self.vocab_size // self.padding_multiple) * self.padding_multiple
        self.vocab_size = self.padded_vocab_size = self.padded_vocab_size or rows  # of the embedding and the head
        self.rope_settings = {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 50_000, **(self.rope_settings or {})}
        # only the first is the public name of the switch
        self.tie_embeddings = self.tie_word_embeddings = self.tie_embeddings or self.tie_word_embeddings
        super().__post_init__(**kwargs)
        self.value_tables, self.value_gates = recognition.parcae_values(self)
        import_module("loopcd.models.parcae")

    def find_values(self, names: Any) -> None:
        """Which layers have value embeddings and gates, by the weights that there are."""
        self.value_tables, self.value_gates = recognition.parcae_values_in(self, names)

    def to_dict(self) -> dict[str, Any]:
        # the public class draws weights before it reads them, which fails for zero ones that are not orthogonal
        fields = {**recognition.PARCAE_FIXED, "init_orthogonal": True, **super().to_dict()}
        return {"_class_name": "ParcaeConfig", **{name: fields[name] for name in recognition.PARCAE_FIELDS if name in fields}}

    def to_diff_dict(self) -> dict[str, Any]:
        return self.to_dict()

    @property
    def num_hidden_layers(self) -> int:
        return self.n_layers_in_prelude + self.n_layers_in_recurrent_block + self.n_layers_in_coda

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.num_attention_heads

    @property
    def rope_base(self) -> float:
        return float((self.rope_settings or {})["rope_base"])

    @property
    def initial_std(self) -> float:
        return sqrt(2 / (5 * self.n_embd))

    @property
    def embed_scale(self) -> float:
        return 1.0
