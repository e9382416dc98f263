"""The families by model type, the public models by name, and the LoopCD setting of each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from loopcd.models import checkpoint, recognition
from loopcd.models.hrm_text import LoopedHrmText
from loopcd.models.huginn import HuginnForCausalLM
from loopcd.models.names import PUBLISHED
from loopcd.models.nanbeige import NanbeigeForCausalLM
from loopcd.models.ouro import OuroForCausalLM
from loopcd.models.parcae import ParcaeForCausalLM
from loopcd.models.retrofit import RetrofitConfig, RetrofitForCausalLM
from loopcd.models.stages import LoopedModel

FAMILIES: dict[str, type[LoopedModel]] = {  # by model type; retrofits have Huginn's
    "huginn_raven": HuginnForCausalLM,
    "ouro": OuroForCausalLM,
    "hrm_text": LoopedHrmText,
    "nanbeige": NanbeigeForCausalLM,
    "parcae": ParcaeForCausalLM,
}
_BY_NAME = {**FAMILIES, "huginn": HuginnForCausalLM, "retrofit": RetrofitForCausalLM}

# the public checkpoints, by the sizes that they were published with
PUBLIC: dict[str, Callable[[], PreTrainedConfig]] = {
    name: partial(_BY_NAME[family].config_class, **fields) for name, (family, fields) in PUBLISHED.items()
}


@dataclass(frozen=True)
class Preset:
    """LoopCD's setting: the amateur's loop, counted from 1, and the strength λ of the contrast."""

    amateur_loop: int
    strength: float


def preset(model: LoopedModel, num_loops: int | None = None) -> Preset:
    """A quarter of the depth at strength 0.3; for Ouro strength 0.2, and loop 2 where it has four.

    Huginn-0125 (32 loops) and Ouro-1.4B (4 loops) so get the paper's fixed settings: 8 and 0.3; 2 and 0.2. The paper writes
    Ouro's amateur as index 1. Its authors' code counts Ouro's indices from 0 in the list of loop outputs (and Huginn's from
    1), so index 1 is two loops completed: amateur_loop=2.
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
    model_type = recognition.model_type_of(fields)
    if model_type is None and recognition.has_parcae_weights(checkpoint.weight_shapes(checkpoint.weight_files(folder))):
        model_type = "parcae"
    if model_type not in FAMILIES:
        raise ValueError(f"{folder} has model type {model_type!r}: looped models are {', '.join(FAMILIES)}")
    retrofitted = model_type == "huginn_raven" and recognition.is_retrofit(fields)
    return RetrofitForCausalLM if retrofitted else FAMILIES[model_type]


def empty_model(config: PreTrainedConfig) -> LoopedModel:
    """The model of that configuration on the meta device: shapes and names, no memory."""
    with torch.device("meta"):
        return family_of(config)(config)
