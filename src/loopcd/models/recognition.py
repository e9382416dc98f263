"""Which family a checkpoint is of: its weights' names decide, its config.json must agree.

Huginn and the retrofitted models share a model type, and their configurations hardly differ; a checkpoint that is read as the
wrong one gives logits off by whole numbers and no error. So what is not known is refused, by name.
"""

import re
from collections.abc import Iterable, Mapping
from math import isclose, sqrt
from typing import Any, Literal

RETROFITTED = ("llama", "olmo")  # base models whose layers retrofits have
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
HUGINN_TOKENS = (65504, 65505, 65508, 65509)
START_STATES = ("random", "skip-adapter", "embed-init")

Fields = Mapping[str, Any]

NAMES = {
    "huginn": "Huginn",
    "retrofit-llama": "a retrofitted Llama",
    "retrofit-olmo": "a retrofitted OLMo",
    "ouro": "Ouro",
    "nanbeige": "Nanbeige",
    "hrm_text": "HRM-Text",
    "parcae": "Parcae",
}


def field(fields: Fields, name: str) -> Any:
    """A field of a config.json, the rotary ones also from where transformers 5 puts them."""
    found = fields.get(name)
    rope = fields.get("rope_parameters")
    if found is None and name == "rope_theta" and isinstance(rope, Mapping):
        return rope.get(name)
    return found


# By the weights


def kind_of(names: Iterable[str]) -> str:
    """The kind (a key of `NAMES`) whose weights have these names; a ValueError says what is not known about them."""
    names = set(names)
    if has_parcae_weights(names):
        return "parcae"
    if any(_RAVEN_LAYER.search(name) for name in names):
        return _raven_kind_of(names)
    if any(".L_module." in name for name in names):
        return "hrm_text"
    if any(".early_exit_gate." in name or ".input_layernorm_2." in name for name in names):
        return "ouro"
    if any(".layers.0.self_attn.q_proj." in name for name in names):
        return "nanbeige"
    raise ValueError(f"no looped model that is known has weights of such names: {', '.join(sorted(names)[:4])} …")


_RAVEN_LAYER = re.compile(r"\.(?:prelude|core_block|coda)\.\d+\.(?:norm_(\d+)\.)?")


def has_parcae_weights(names: Iterable[str]) -> bool:
    return any(name.endswith("adapter.A_log") or ".attn.c_q." in name for name in names)


def _raven_kind_of(names: set[str]) -> str:
    found = {match[1] for name in names if (match := _RAVEN_LAYER.search(name))}
    norms = sorted(each for each in found if each is not None)
    qk_norm = any(".attn.q_norm." in name for name in names)
    qk_bias = any(name.endswith(".attn.qk_bias") for name in names)
    known = {
        ("1234", False, True): "huginn",
        ("12", False, False): "retrofit-llama",
        ("12", True, False): "retrofit-olmo",
    }
    kind = known.get(("".join(norms), qk_norm, qk_bias))
    if kind is None:
        raise ValueError(
            f"layers with norms {', '.join(norms) or 'of other names'}, {'' if qk_norm else 'no '}q/k norm and "
            f"{'' if qk_bias else 'no '}q/k bias are neither Huginn's nor those of a retrofitted Llama or OLMo"
        )
    return kind


# By the configuration


def raven_kind(fields: Fields) -> Literal["huginn", "retrofit"]:
    """Of the two families of model type huginn_raven, by the rotary positions; what neither of them has is refused."""
    for name, allowed in _RAVEN_ONLY.items():
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(f"{name}={fields[name]!r}: known for this model type is {' or '.join(map(repr, allowed))}")
    _refuse_unknown(fields)
    return "huginn" if field(fields, "rope_theta") is None else "retrofit"


_RAVEN_ONLY = {
    "injection_type": ("linear",),
    "nonlin_name": ("SiLU",),
    "mlp_class_name": ("GatedMLP",),
    "norm_class_name": ("RMSNorm_llama", "RMSNorm"),
    "block_class_name": ("SandwichBlock",),
    "hidden_act": ("silu", None),
    "hidden_activation": ("silu", None),
}
_UNKNOWN = re.compile(r"soft_?cap|query_pre_attn_scalar|sliding_window|add_unit_offset|qk_?norm|clip_qkv")


def _refuse_unknown(fields: Fields) -> None:
    for name, value in fields.items():
        if value not in (None, False) and _UNKNOWN.search(name):
            raise ValueError(f"{name}={value!r}: no family of this model type that is known has it")


def check_huginn(fields: Fields) -> None:
    """What every Huginn has and other models of its type may lack."""
    width, heads = fields.get("n_embd", 5280), fields.get("n_heads", 55)
    scale = (fields.get("init_values") or {}).get("embed_scale", sqrt(width))
    if not isclose(scale, sqrt(width), rel_tol=1e-3):
        raise ValueError(f"embed_scale={scale}: Huginn's embeddings are scaled by √n_embd = {sqrt(width):.4g}")
    if (fields.get("num_key_value_heads") or heads) != heads:
        raise ValueError(f"num_key_value_heads={fields['num_key_value_heads']}: Huginn has as many as n_heads={heads}")
    if field(fields, "rope_scaling"):
        raise ValueError(f"rope_scaling={fields['rope_scaling']!r}: Huginn has none")
    if fields.get("qk_bias", True) is not True:
        raise ValueError(f"qk_bias={fields['qk_bias']!r}: Huginn has one")


# What Nanbeige's public code can do and its released models do not: each changes the computation.
_NANBEIGE_OFF = (
    *("enable_hyper_connection", "enable_mhc", "enable_h_res_identity", "enable_depth_attention", "enable_double_loop_split"),
    *("loop_middle_layers", "loop_share_kv", "qk_layernorm", "emb_neighbor_num", "emb_split_num", "insert_ngram_layer_idx"),
    *("ngram_insert_all_layers", "skip_ngram_for_input", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window"),
)
_NANBEIGE_OFF_PREFIXES = ("mhc_", "depth_attention_", "ngram_")


def check_nanbeige(fields: Fields) -> None:
    for name, value in fields.items():
        off = name in _NANBEIGE_OFF or name.startswith(_NANBEIGE_OFF_PREFIXES)
        if off and value not in (None, False, 0, [], {}, ""):
            raise ValueError(f"{name}={value!r}: Nanbeige is supported as it was released, without it")
    if fields.get("num_residual_streams", 4) not in (None, 4):
        raise ValueError(f"num_residual_streams={fields['num_residual_streams']!r}: Nanbeige is supported with 4")
    if fields.get("pretraining_tp", 1) not in (None, 1):
        raise ValueError(f"pretraining_tp={fields['pretraining_tp']!r}: Nanbeige is supported with 1")
    if fields.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act={fields['hidden_act']!r}: Nanbeige uses 'silu'")
    if set(fields.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError(f"layer_types={fields['layer_types']!r}: Nanbeige is supported with full_attention only")


def is_parcae(fields: Fields) -> bool:
    """Its configuration has no model type, but the names of its classes."""
    return fields.get("_class_name") == "ParcaeConfig" or fields.get("model_class_name") == "Parcae"


PARCAE_FIELDS = (  # of the public configuration class, which takes no others
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
PARCAE_CHECKED = ("injection_type", "state_init", "rope_settings")
PARCAE_FIXED = {  # what the public class has other defaults for
    "block_class_name": "TransformerPreNormBlock",
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "BaseMLP",
    "nonlin_name": "ReLU2",
    "init_strategy": "scaled-zero",  # others scale the embeddings or the logits
    "model_class_name": "Parcae",
}
_PARCAE_ONLY = {
    **{name: (value,) for name, value in PARCAE_FIXED.items()},
    "mup_model_scaling_factor": (1,),
    "injection_type": ("diagonal", "linear", "add"),
    "state_init": ("like-init", "zero", "normal", "embed", "unit"),
    **dict.fromkeys(("bias", "qk_bias", "use_abacus", "debias_attention", "center_attention"), (False,)),
    "clip_qkv": (None,),
}


def check_parcae(fields: Fields) -> None:
    for name, allowed in _PARCAE_ONLY.items():
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(f"{name}={fields[name]!r}: Parcae is supported with {' or '.join(map(repr, allowed))}")
    rope = fields.get("rope_settings")
    if rope is not None and (not rope.get("use_rope", True) or rope.get("rope_condense_ratio", 1) != 1):
        raise ValueError(f"rope_settings={rope!r}: Parcae is supported with plain rotary positions only")


def parcae_values(config: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which layers, counted over prelude, core and coda, have a table of value embeddings, and which a gate for it."""
    prelude, core = config.n_layers_in_prelude, config.n_layers_in_recurrent_block
    layers = range(prelude + core + config.n_layers_in_coda)
    tables = [number for number in layers if number % 2 == (len(layers) - 1) % 2]
    odd = (core * config.mean_backprop_depth - 1) % 2
    gates = []
    for number in layers:
        unrolled = number if number < prelude + core else number + core * (config.mean_recurrence - 1)
        gates += [number] if unrolled % 2 == odd else []
    return tuple(tables), tuple(gates)


def parcae_values_in(config: Any, names: Iterable[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`parcae_values` by the names of the weights: the rule depends on a number of loops, which may have been changed."""
    first = {"prelude": 0, "core_block": config.n_layers_in_prelude}
    first["coda"] = first["core_block"] + config.n_layers_in_recurrent_block
    tables, gates = set(), set()
    for name in names:
        if match := re.match(r"value_embeds\.(\d+)\.", name):
            tables.add(int(match[1]))
        elif match := re.match(r"transformer\.(prelude|core_block|coda)\.(\d+)\.attn\.ve_gate\.", name):
            gates.add(first[match[1]] + int(match[2]))
    return tuple(sorted(tables)), tuple(sorted(gates))
