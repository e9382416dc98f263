"""What a looped model is: the four stages, the cache, the families, and how to load one."""

from loopcd.models.cache import LoopCache
from loopcd.models.hrm_text import LoopedHrmText
from loopcd.models.huginn import HuginnConfig, HuginnForCausalLM
from loopcd.models.load import load
from loopcd.models.memory import cache_bytes
from loopcd.models.ouro import OuroConfig, OuroForCausalLM
from loopcd.models.presets import Preset, preset
from loopcd.models.stages import LoopedModel, LoopState, loop_logits

__all__ = [
    "HuginnConfig",
    "HuginnForCausalLM",
    "LoopCache",
    "LoopState",
    "LoopedHrmText",
    "LoopedModel",
    "OuroConfig",
    "OuroForCausalLM",
    "Preset",
    "cache_bytes",
    "load",
    "loop_logits",
    "preset",
]
