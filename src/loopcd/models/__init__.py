"""What a looped model is: the four stages, the cache, the families, and how to load one.

Start with `stages`: begin, advance, readout and head, and `forward` made of them. `cache` holds one slot (`slots`) for each
loop and layer; `layers` are the layers, `coda` what an amateur sees through a coda. Each family is one file (`huginn`, `ouro`,
…) on `recurrent` or `stacked`. `loading.load` finds and checks a checkpoint (`recognition`, `checkpoint`) and lays it out
(`layout`, `int8`); `presets` has LoopCD's setting for each model, `places` rows that are at different loops.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopcd.models.cache import LoopCache
    from loopcd.models.configs import HuginnConfig, NanbeigeConfig, OuroConfig, ParcaeConfig, RetrofitConfig
    from loopcd.models.hrm_text import LoopedHrmText
    from loopcd.models.huginn import HuginnForCausalLM
    from loopcd.models.loading import load
    from loopcd.models.memory import cache_bytes
    from loopcd.models.nanbeige import NanbeigeForCausalLM
    from loopcd.models.ouro import OuroForCausalLM
    from loopcd.models.parcae import ParcaeForCausalLM
    from loopcd.models.presets import Preset, preset
    from loopcd.models.retrofit import RetrofitForCausalLM
    from loopcd.models.stages import LoopedModel, LoopState, loop_logits

__all__ = ["HuginnConfig", "NanbeigeConfig", "OuroConfig", "ParcaeConfig", "RetrofitConfig"]
__all__ += ["HuginnForCausalLM", "NanbeigeForCausalLM", "OuroForCausalLM", "ParcaeForCausalLM", "RetrofitForCausalLM"]
__all__ += ["LoopCache", "LoopState", "LoopedHrmText", "LoopedModel", "Preset", "cache_bytes", "load", "loop_logits", "preset"]

# where they are, `presets` having all families; what takes longer to import comes later
_HOMES = ("configs", "cache", "memory", "stages", "presets", "loading")


def __getattr__(name: str) -> Any:
    """Import a module when something of it is first asked for, since torch and transformers take seconds to import."""
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
