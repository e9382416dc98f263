"""The looped models that are known by name, and the LoopCD setting of each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedConfig
from transformers.models.hrm_text.configuration_hrm_text import HrmTextConfig

from loopcd.models import checkpoint, recognition
from loopcd.models.hrm_text import LoopedHrmText
from loopcd.models.huginn import HuginnConfig, HuginnForCausalLM
from loopcd.models.nanbeige import NanbeigeConfig, NanbeigeForCausalLM
from loopcd.models.ouro import OuroConfig, OuroForCausalLM
from loopcd.models.parcae import ParcaeConfig, ParcaeForCausalLM
from loopcd.models.retrofit import RetrofitConfig, RetrofitForCausalLM
from loopcd.models.stages import LoopedModel

FAMILIES: dict[str, type[LoopedModel]] = {
    "huginn_raven": HuginnForCausalLM,
    "ouro": OuroForCausalLM,
    "hrm_text": LoopedHrmText,
    "nanbeige": NanbeigeForCausalLM,
    "parcae": ParcaeForCausalLM,
}

_HUGINN_0125 = partial(HuginnConfig, bos_token_id=65504, eos_token_id=65505, pad_token_id=65509)
_OURO = partial(OuroConfig, bos_token_id=0, eos_token_id=0, pad_token_id=0)

_LLAMA_SCALING = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_RETROFIT = partial(RetrofitConfig, init_values={"embed_scale": 1.0, "std": 0.008703882797784892})
_RECURRENT_LLAMA = partial(
    _RETROFIT,
    num_key_value_heads=8,
    rope_parameters={"rope_theta": 500_000.0, "rope_type": "llama3", **_LLAMA_SCALING},
)
_RECURRENT_TINYLLAMA = partial(
    _RETROFIT,
    num_key_value_heads=4,
    n_layers_in_recurrent_block=8,
    intermediate_size=5632,
    vocab_size=32000,
    max_position_embeddings=2048,
    rope_parameters={"rope_theta": 10_000.0},
)
_RECURRENT_OLMO = partial(
    _RETROFIT,
    n_heads=16,
    layers_like="olmo",
    norm_eps=1e-6,
    vocab_size=100352,
    max_position_embeddings=4096,
    rope_parameters={"rope_theta": 500_000.0},
)
_NANBEIGE = partial(NanbeigeConfig, bos_token_id=166100, eos_token_id=166101, pad_token_id=0)


def _parcae(width: int, layers: int) -> partial[ParcaeConfig]:
    return partial(
        ParcaeConfig,
        n_embd=width,
        num_attention_heads=width // 128,
        n_layers_in_prelude=layers,
        n_layers_in_recurrent_block=layers,
        n_layers_in_coda=layers,
        mean_recurrence=8,
        mean_backprop_depth=4,
        qk_norm=True,
        prelude_norm=True,
        tie_embeddings=True,
    )


# the public checkpoints, by the sizes that they were published with
PUBLIC: dict[str, Callable[[], PreTrainedConfig]] = {
    "tomg-group-umd/huginn-0125": _HUGINN_0125,
    "ByteDance/Ouro-1.4B": _OURO,
    "ByteDance/Ouro-1.4B-Thinking": _OURO,
    "ByteDance/Ouro-2.6B": partial(_OURO, num_hidden_layers=48),
    "ByteDance/Ouro-2.6B-Thinking": partial(_OURO, num_hidden_layers=48),
    "sapientinc/HRM-Text-1B": HrmTextConfig,
    "Nanbeige/Nanbeige4.2-3B": _NANBEIGE,
    "Nanbeige/Nanbeige4.2-3B-Base": partial(
        _NANBEIGE, max_position_embeddings=131072, rope_parameters={"rope_theta": 10_000_000.0}
    ),
    "smcleish/Recurrent-Llama-3.2-train-recurrence-32": _RECURRENT_LLAMA,
    "smcleish/Recurrent-TinyLlama-3T-train-recurrence-32": _RECURRENT_TINYLLAMA,
    "smcleish/Recurrent-OLMo-2-0425-train-recurrence-32": _RECURRENT_OLMO,
    "SandyResearch/parcae-140m": _parcae(768, 2),
    "SandyResearch/parcae-370m": _parcae(1024, 4),
    "SandyResearch/parcae-770m": _parcae(1280, 6),
    "SandyResearch/parcae-1.3b": _parcae(1536, 8),
}


@dataclass(frozen=True)
class Preset:
    """LoopCD's setting: the amateur's loop, counted from 1, and the strength λ of the contrast."""

    amateur_loop: int
    strength: float


def preset(model: LoopedModel, num_loops: int | None = None) -> Preset:
    """The paper's fixed setting where it has one, else a quarter of the depth at strength 0.3.

    Huginn-0125 (32 loops): amateur 8, strength 0.3: a quarter of the depth.

    Ouro-1.4B (4 loops): the paper fixes the amateur's index 1, with strength 0.2. Its authors' code counts Ouro's indices
    from 0 in the list of loop outputs (and Huginn's from 1), so index 1 is two loops completed: amateur_loop=2.
    """
    return preset_for(model.config.model_type, num_loops or model.num_loops)


def preset_for(model_type: str, loops: int) -> Preset:
    """`preset`, where there is a configuration but no model."""
    if model_type == "ouro":
        return Preset(2 if loops == 4 else max(1, loops // 4), 0.2)
    return Preset(max(1, loops // 4), 0.3)


def family_of(config: PreTrainedConfig) -> type[LoopedModel]:
    return RetrofitForCausalLM if isinstance(config, RetrofitConfig) else FAMILIES[config.model_type]


def family_in(folder: Path) -> type[LoopedModel]:
    """Whose configuration a folder has; the family itself then looks whether the weights agree."""
    fields = checkpoint.read_config(folder)
    model_type = "parcae" if recognition.is_parcae(fields) else fields.get("model_type")
    if model_type is None and recognition.has_parcae_weights(checkpoint.weight_shapes(checkpoint.weight_files(folder))):
        model_type = "parcae"
    if model_type not in FAMILIES:
        raise ValueError(f"{folder} has model type {model_type!r}: looped models are {', '.join(FAMILIES)}")
    try:
        retrofitted = model_type == "huginn_raven" and recognition.raven_kind(fields) == "retrofit"
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} cannot be used: {error}") from error
    return RetrofitForCausalLM if retrofitted else FAMILIES[model_type]


def empty_model(config: PreTrainedConfig) -> LoopedModel:
    """The model of that configuration on the meta device: shapes and names, no memory."""
    with torch.device("meta"):
        return family_of(config)(config)
