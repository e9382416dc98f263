"""The looped models that are known by name, and the LoopCD setting of each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedConfig
from transformers.models.hrm_text.configuration_hrm_text import HrmTextConfig

from loopcd.models.hrm_text import LoopedHrmText
from loopcd.models.huginn import HuginnConfig, HuginnForCausalLM
from loopcd.models.ouro import OuroConfig, OuroForCausalLM
from loopcd.models.stages import LoopedModel

FAMILIES: dict[str, type[LoopedModel]] = {
    "huginn_raven": HuginnForCausalLM,
    "ouro": OuroForCausalLM,
    "hrm_text": LoopedHrmText,
}

_HUGINN_0125 = partial(HuginnConfig, bos_token_id=65504, eos_token_id=65505, pad_token_id=65509)
_OURO = partial(OuroConfig, bos_token_id=0, eos_token_id=0, pad_token_id=0)

# the public checkpoints, by the sizes that they were published with
PUBLIC: dict[str, Callable[[], PreTrainedConfig]] = {
    "tomg-group-umd/huginn-0125": _HUGINN_0125,
    "ByteDance/Ouro-1.4B": _OURO,
    "ByteDance/Ouro-1.4B-Thinking": _OURO,
    "ByteDance/Ouro-2.6B": partial(_OURO, num_hidden_layers=48),
    "ByteDance/Ouro-2.6B-Thinking": partial(_OURO, num_hidden_layers=48),
    "sapientinc/HRM-Text-1B": HrmTextConfig,
}


@dataclass(frozen=True)
class Preset:
    """LoopCD's setting: the amateur's loop, counted from 1, and the strength λ of the contrast."""

    amateur_loop: int
    strength: float


def preset(model: LoopedModel, num_loops: int | None = None) -> Preset:
    """The paper's fixed setting where it has one, else a quarter of the depth at strength 0.3.

    Huginn-0125 (32 loops): amateur 8, strength 0.3: a quarter of the depth.

    Ouro-1.4B (4 loops): the paper searches the amateur index in {0, 1} and fixes 1, with strength 0.2. It does not say
    from what it counts. Huginn's indices count loops completed (8 of 32), and by that count 0 would be the embedding
    before any loop, which has no readout. We therefore read Ouro's indices as positions in its list of loop outputs: 0
    and 1 are one and two loops completed, and the fixed setting is amateur_loop=2. For the other reading pass
    `amateur_loop=1`.
    """
    return preset_for(model.config.model_type, num_loops or model.num_loops)


def preset_for(model_type: str, loops: int) -> Preset:
    """`preset`, where there is a configuration but no model."""
    if model_type == "ouro":
        return Preset(2 if loops == 4 else max(1, loops // 4), 0.2)
    return Preset(max(1, loops // 4), 0.3)


def empty_model(config: PreTrainedConfig) -> LoopedModel:
    """The model of that configuration on the meta device: shapes and names, no memory."""
    with torch.device("meta"):
        return FAMILIES[config.model_type](config)
