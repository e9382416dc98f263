"""Which family a checkpoint is of: its weights' names decide, its config.json must agree.

Huginn and the retrofitted models share a model type, and their configurations hardly differ; a checkpoint that is read as the
wrong one gives logits off by whole numbers and no error. So what is not known is refused, by name.
"""

import re
from collections.abc import Iterable, Mapping
from math import isclose, sqrt
from typing import Any

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
HUGINN_TOKENS = (65504, 65505, 65508, 65509)

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

# By the weights

_MARKS = {  # of the weights' names; the first that is found decides
    "parcae": re.compile(r"adapter\.A_log$|\.attn\.c_q\."),
    "raven": re.compile(r"\.(?:prelude|core_block|coda)\.\d+\.(?:norm_(\d+)\.)?"),
    "hrm_text": re.compile(r"\.L_module\."),
    "ouro": re.compile(r"\.early_exit_gate\.|\.input_layernorm_2\."),
    "nanbeige": re.compile(r"\.layers\.0\.self_attn\.q_proj\."),
}
_RAVENS = {  # by the norms of a layer, and whether there are norms of queries and keys, and biases
    ("1234", False, True): "huginn",
    ("12", False, False): "retrofit-llama",
    ("12", True, False): "retrofit-olmo",
}


def kind_of(names: Iterable[str]) -> str:
    """The kind (a key of `NAMES`) whose weights have these names; a ValueError says what is not known about them."""
    names = set(names)
    for kind, mark in _MARKS.items():
        if any(mark.search(name) for name in names):
            return _raven_kind_of(names) if kind == "raven" else kind
    raise ValueError(f"no looped model that is known has weights of such names: {', '.join(sorted(names)[:4])} …")


def has_parcae_weights(names: Iterable[str]) -> bool:
    return any(_MARKS["parcae"].search(name) for name in names)


def _raven_kind_of(names: set[str]) -> str:
    norms = sorted({match[1] for name in names if (match := _MARKS["raven"].search(name)) and match[1]})
    qk_norm = any(".attn.q_norm." in name for name in names)
    qk_bias = any(name.endswith(".attn.qk_bias") for name in names)
    kind = _RAVENS.get(("".join(norms), qk_norm, qk_bias))
    if kind is None:
        raise ValueError(
            f"layers with norms {', '.join(norms) or 'of other names'}, {'' if qk_norm else 'no '}q/k norm and "
            f"{'' if qk_bias else 'no '}q/k bias are neither Huginn's nor those of a retrofitted Llama or OLMo"
        )
    return kind


# By the configuration


def field(fields: Fields, name: str) -> Any:
    """A field of a config.json, the rotary ones also from where transformers 5 puts them."""
    found = fields.get(name)
    rope = fields.get("rope_parameters")
    if found is None and name == "rope_theta" and isinstance(rope, Mapping):
        return rope.get(name)
    return found


def is_retrofit(fields: Fields) -> bool:
    """Of the two families of model type huginn_raven, the one with a base model's rotary positions."""
    return field(fields, "rope_theta") is not None


def model_type_of(fields: Fields) -> Any:
    """The model type; Parcae's configuration has none, but the names of its classes."""
    parcae = fields.get("_class_name") == "ParcaeConfig" or fields.get("model_class_name") == "Parcae"
    return "parcae" if parcae else fields.get("model_type")


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


# What Parcae's layers have beside the others'


def parcae_values(config: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which layers, counted over prelude, core and coda, have a table of value embeddings, and which a gate for it."""
    core, layers = config.n_layers_in_recurrent_block, range(config.num_hidden_layers)
    tables = tuple(number for number in layers if number % 2 == (len(layers) - 1) % 2)
    coda = config.n_layers_in_prelude + core
    unrolled = {number: number + (core * (config.mean_recurrence - 1) if number >= coda else 0) for number in layers}
    odd = (core * config.mean_backprop_depth - 1) % 2
    return tables, tuple(number for number, place in unrolled.items() if place % 2 == odd)


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
