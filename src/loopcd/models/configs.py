"""The configurations of the families: the public checkpoints' `config.json`, field for field, also when they are saved.

What the public code can do and the published models do not is refused by name: a field that is silently ignored gives a wrong
model. They are light, so that importing loopcd is; making one brings in its model, which registers itself with transformers.
"""

import re
from importlib import import_module
from math import sqrt
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from loopcd.models import recognition


@strict
class LoopedConfig(PreTrainedConfig):
    """What the configurations of all families have."""

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    home: ClassVar[str] = ""  # the module of the family's model
    title: ClassVar[str] = ""  # how the family is called
    loops_field: ClassVar[str] = "mean_recurrence"
    only: ClassVar[dict[str, tuple[Any, ...]]] = {}  # the values that these fields may have, where they are given
    without: ClassVar[str] = r"$^"  # fields of such names may only say that something is not there

    num_key_value_heads: int | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name, value in {**kwargs, **vars(self)}.items():
            if name in self.only and value not in self.only[name]:
                allowed = " or ".join(map(repr, self.only[name]))
                raise ValueError(f"{name}={value!r}: {self.title} is supported with {allowed}")
            if value and re.search(self.without, name):
                raise ValueError(f"{name}={value!r}: {self.title} is supported as it was released, without it")
        if getattr(self, self.loops_field) < 1:
            raise ValueError(f"{self.loops_field}={getattr(self, self.loops_field)}: at least one loop")
        super().__post_init__(**kwargs)
        import_module(f"loopcd.models.{type(self).home}")  # the class's: a config.json may have a field of that name

    def fit_heads(self, size: int | None = None, exact: bool = False) -> int:
        """The heads' size, a part of the width unless it is given; `exact` ones take up all of it."""
        width, heads = (self.attribute_map.get(name, name) for name in ("hidden_size", "num_attention_heads"))
        count = self.num_attention_heads
        self.num_key_value_heads = self.num_key_value_heads or count
        if count < 1 or (exact and self.hidden_size % (2 * count)):
            raise ValueError(f"{width}={self.hidden_size} does not divide into {heads}={count} heads of even size")
        if count % self.num_key_value_heads:
            raise ValueError(f"{heads}={count} is no multiple of num_key_value_heads={self.num_key_value_heads}")
        found: int = size or self.hidden_size // count
        if found % 2:
            raise ValueError(f"{width}={self.hidden_size} gives {heads}={count} heads of odd size {found}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """With rotary positions as the public code has them: `rope_theta` and `rope_scaling`, for transformers 5 one field."""
        fields = super().to_dict()
        if "rope_parameters" in fields:
            rope = dict(fields.pop("rope_parameters") or {})
            fields["rope_theta"] = rope.pop("rope_theta", None)
            fields["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
        return fields

    @property
    def initial_std(self) -> float:
        """Of the loops' start state, where it is drawn."""
        return sqrt(2 / (5 * self.hidden_size))


@strict
class RavenConfig(LoopedConfig):
    """The fields of model type huginn_raven, which two families share; what only its training code reads is kept, not used."""

    model_type = "huginn_raven"
    only = {  # noqa: RUF012
        "injection_type": ("linear",),
        "nonlin_name": ("SiLU",),
        "mlp_class_name": ("GatedMLP",),
        "norm_class_name": ("RMSNorm_llama", "RMSNorm"),
        "block_class_name": ("SandwichBlock",),
        "hidden_act": ("silu", None),
        "hidden_activation": ("silu", None),
    }
    without = r"soft_?cap|query_pre_attn_scalar|sliding_window|add_unit_offset|qk_?norm|clip_qkv"

    n_embd: int = 5280
    n_heads: int = 55
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

    def __post_init__(self, **kwargs: Any) -> None:
        self.n_layers = self.n_layers_in_prelude + self.n_layers_in_recurrent_block + self.n_layers_in_coda
        # a saved untied model carries both names of the same switch; either says untied
        self.tie_embeddings = self.tie_word_embeddings = self.tie_embeddings and self.tie_word_embeddings
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        fields.pop("tie_word_embeddings", None)  # the public class would take it twice: it is tie_embeddings
        return fields

    @property
    def embed_scale(self) -> float:
        return sqrt(self.n_embd)


@strict
class HuginnConfig(RavenConfig):
    """Huginn-0125, and models made like it."""

    home, title = "huginn", "Huginn"
    attribute_map = {  # noqa: RUF012
        "num_attention_heads": "n_heads",
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "block_size",
    }

    initializer_range: float | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.fit_heads(exact=True)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Of the two families that share the model type, the one whose configuration these fields are."""
        if recognition.is_retrofit(config_dict):
            return RetrofitConfig.from_dict(config_dict, **kwargs)
        return super().from_dict(config_dict, **kwargs)


@strict
class RetrofitConfig(RavenConfig):
    """Retrofitted recurrence: Huginn's fields and model type, with the base model's rotary positions.

    Which base model's layers it has (`layers_like`) no public `config.json` says: it is read off the weights.
    """

    home, title = "retrofit", "retrofitted recurrence"
    attribute_map = {"num_attention_heads": "n_heads", "hidden_size": "n_embd", "num_hidden_layers": "n_layers"}  # noqa: RUF012
    only = {  # noqa: RUF012
        **RavenConfig.only,
        "qk_bias": (False,),
        "layers_like": ("llama", "olmo"),
        "initial_state_mode": ("random", "skip-adapter", "embed-init"),
    }
    default_theta: ClassVar[float] = 500_000.0

    n_embd: int = 2048
    n_heads: int = 32
    n_layers_in_prelude: int = 4
    n_layers_in_recurrent_block: int = 6
    n_layers_in_coda: int = 4
    intermediate_size: int = 8192
    vocab_size: int = 128256
    padded_vocab_size: int | None = None
    norm_eps: float = 1e-5
    bias: bool = False  # of the adapter
    qk_bias: bool = False
    max_position_embeddings: int = 131072  # Huginn's block_size and rope_base are not used
    rope_parameters: RopeParameters | dict | None = None
    initial_state_mode: str = "random"
    init_values: dict | None = None
    layers_like: str = "llama"
    tie_embeddings: bool = False
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.fit_heads(self.head_dim)
        self.vocab_size = self.padded_vocab_size = self.padded_vocab_size or self.vocab_size  # of the embedding and the head
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        if not recognition.is_retrofit(config_dict):
            raise ValueError("rope_theta is missing: a retrofitted model has its base model's rotary positions")
        # where only one of the two switches stands there, it is the one that counts
        tied = config_dict.get("tie_embeddings", config_dict.get("tie_word_embeddings", True))
        switches = {"tie_embeddings": tied, "tie_word_embeddings": config_dict.get("tie_word_embeddings", tied)}
        # the converters leave Huginn's special tokens in, which are ordinary ones here, or none
        stale = [name for name in recognition.SPECIAL if config_dict.get(name) in recognition.HUGINN_TOKENS]
        return super().from_dict({**config_dict, **switches, **dict.fromkeys(stale)}, **kwargs)

    @property
    def rotary_base(self) -> float:
        return float((self.rope_parameters or {}).get("rope_theta") or self.default_theta)

    @property
    def initial_std(self) -> float:
        return float((self.init_values or {}).get("std") or super().initial_std)

    @property
    def embed_scale(self) -> float:
        """What the converters write is 1; only without any `init_values` it is Huginn's."""
        return super().embed_scale if self.init_values is None else float(self.init_values.get("embed_scale", 1.0))


@strict
class StackedConfig(LoopedConfig):
    """What Ouro and Nanbeige have in common: the names of Llama's fields."""

    only = {"hidden_act": ("silu",)}  # noqa: RUF012
    default_theta: ClassVar[float] = 10_000.0

    vocab_size: int = 49152
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 65536
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeParameters | dict | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.fit_heads(self.head_dim)
        super().__post_init__(**kwargs)
        rope_type = (self.rope_parameters or {}).get("rope_type", "default")
        if rope_type != "default":
            raise ValueError(f"rope_scaling of type {rope_type!r}: {self.title} is supported with plain rotary positions only")

    @property
    def rope_base(self) -> float:
        return float((self.rope_parameters or {}).get("rope_theta") or self.default_theta)


@strict
class OuroConfig(StackedConfig):
    model_type = "ouro"
    home, title, loops_field = "ouro", "Ouro", "total_ut_steps"
    without = "use_sliding_window"

    total_ut_steps: int = 4
    early_exit_threshold: float = 1.0
    use_sliding_window: bool = False


@strict
class NanbeigeConfig(StackedConfig):
    model_type = "nanbeige"
    home, title, loops_field = "nanbeige", "Nanbeige", "num_loops"
    only = {**StackedConfig.only, "num_residual_streams": (4, None), "pretraining_tp": (1, None)}  # noqa: RUF012
    without = (  # what its public code can do: each changes the computation
        r"^(mhc_|depth_attention_|ngram_|enable_(hyper_connection|mhc|h_res_identity|depth_attention|double_loop_split)$|"
        r"(loop_middle_layers|loop_share_kv|qk_layernorm|emb_neighbor_num|emb_split_num|insert_ngram_layer_idx|"
        r"skip_ngram_for_input|attention_bias|mlp_bias|sliding_window|use_sliding_window)$)"
    )
    default_theta = 70_000_000.0

    vocab_size: int = 166144
    hidden_size: int = 3072
    intermediate_size: int = 10752
    num_hidden_layers: int = 22
    num_attention_heads: int = 48
    num_key_value_heads: int | None = 8
    kv_channels: int | None = None
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    num_loops: int = 2
    loop_loss_weights: list | None = None
    skip_loop_final_norm: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if set(kwargs.get("layer_types") or ()) - {"full_attention"}:
            raise ValueError(f"layer_types={kwargs['layer_types']!r}: Nanbeige is supported with full_attention only")
        asked = len(self.loop_loss_weights or ()) + 1
        if self.loop_loss_weights and asked != self.num_loops:
            raise ValueError(
                f"loop_loss_weights={self.loop_loss_weights} asks for {asked} loops, num_loops for {self.num_loops}"
            )
        self.head_dim = self.head_dim or self.kv_channels or 128  # never hidden_size / heads: the heads are wider
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        missing = [name for name in ("num_loops", "rope_theta") if recognition.field(config_dict, name) is None]
        if missing:  # the public ports disagree about what is meant then
            raise ValueError(f"{' and '.join(missing)} missing: Nanbeige's configuration has it")
        return super().from_dict(config_dict, **kwargs)


_PARCAE_FIXED = {  # what the public class has other defaults for
    "block_class_name": "TransformerPreNormBlock",
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "BaseMLP",
    "nonlin_name": "ReLU2",
    "init_strategy": "scaled-zero",  # others scale the embeddings or the logits
    "model_class_name": "Parcae",
}
_PARCAE_FIELDS = (  # of the public class, which takes no others
    *("name", "hf_config", "block_size", "n_embd", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "padding_multiple", "padded_vocab_size", "rope_settings", "use_abacus", "randomize_positions_from"),
    *("block_class_name", "norm_class_name", "attn_impl", "norm_eps", "mlp_class_name", "nonlin_name", "bias", "qk_bias"),
    *("init_strategy", "init_orthogonal", "skip_initialization", "mup_model_scaling_factor", "use_fused_head"),
    *("debias_attention", "center_attention", "clip_qkv", "qk_norm", "logit_softcap", "activation_checkpoint_impl"),
    *("simple_ops", "strategy", "injection_type", "n_layers_in_recurrent_block", "n_layers_in_prelude", "n_layers_in_coda"),
    *("state_init", "recurrent_embedding_dimension", "recurrent_intermediation_embedding_dimension"),
    *("recurrent_num_attention_heads", "prelude_norm", "sampling_scheme", "mean_recurrence", "mean_backprop_depth"),
    *("lockstep_n", "lockstep_k", "curriculum_target", "recurrent_iteration_method", "tie_embeddings"),
    *("model_class_name", "_is_recurrent_block_config"),
)


@strict
class ParcaeConfig(LoopedConfig):
    """The public `config.json`: a dataclass written out, without a model type, and saved as such."""

    model_type = "parcae"
    home, title = "parcae", "Parcae"
    attribute_map = {"hidden_size": "n_embd", "max_position_embeddings": "block_size"}  # noqa: RUF012
    only = {  # noqa: RUF012
        **{name: (value,) for name, value in _PARCAE_FIXED.items()},
        "mup_model_scaling_factor": (1,),
        "injection_type": ("diagonal", "linear", "add"),
        "state_init": ("like-init", "zero", "normal", "embed", "unit"),
        **dict.fromkeys(("bias", "qk_bias", "use_abacus", "debias_attention", "center_attention"), (False,)),
        "clip_qkv": (None,),
    }
    embed_scale = 1.0

    n_embd: int = 768
    num_attention_heads: int = 6
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

    def __post_init__(self, **kwargs: Any) -> None:
        self.fit_heads(exact=True)
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
        if not self.rope_settings["use_rope"] or self.rope_settings["rope_condense_ratio"] != 1:
            raise ValueError(f"rope_settings={self.rope_settings!r}: Parcae is supported with plain rotary positions only")
        # only the first is the public name of the switch
        self.tie_embeddings = self.tie_word_embeddings = self.tie_embeddings or self.tie_word_embeddings
        super().__post_init__(**kwargs)
        self.value_tables, self.value_gates = recognition.parcae_values(self)

    def to_dict(self) -> dict[str, Any]:
        # the public class draws weights before it reads them, which fails for zero ones that are not orthogonal
        fields = {**_PARCAE_FIXED, "init_orthogonal": True, **super().to_dict()}
        return {"_class_name": "ParcaeConfig", **{name: fields[name] for name in _PARCAE_FIELDS if name in fields}}

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
