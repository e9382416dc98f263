"""Looped language models, and LoopCD: decoding that contrasts the last loop with an early one.

Importing this registers the looped families' model types with transformers' Auto classes, and changes nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from loopcd.models.configs import HuginnConfig, NanbeigeConfig, OuroConfig, ParcaeConfig

if TYPE_CHECKING:
    from loopcd.decoding import (
        MTI,
        Batch,
        EarlyExit,
        Generation,
        Greedy,
        LoopCD,
        LoopGuidance,
        NoiseCD,
        SelfDraft,
        SelfEval,
        stream,
    )
    from loopcd.models import (
        HuginnForCausalLM,
        NanbeigeForCausalLM,
        OuroForCausalLM,
        ParcaeForCausalLM,
        RetrofitForCausalLM,
        load,
        loop_logits,
    )
    from loopcd.tracing import LoopTrace, TraceWriter, generate, read_traces

__version__ = "0.1.0"

# The models register themselves with AutoModelForCausalLM when a configuration of theirs is made.
for _config in (HuginnConfig, OuroConfig, NanbeigeConfig, ParcaeConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)

_ROOMS = {
    **dict.fromkeys(("HuginnForCausalLM", "OuroForCausalLM", "load", "loop_logits"), "loopcd.models"),
    **dict.fromkeys(("NanbeigeForCausalLM", "ParcaeForCausalLM", "RetrofitForCausalLM"), "loopcd.models"),
    **dict.fromkeys(("LoopTrace", "TraceWriter", "generate", "read_traces"), "loopcd.tracing"),
}


def __getattr__(name: str) -> Any:
    """Bring in a room when something of it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'loopcd' has no attribute {name!r}")
    return getattr(import_module(_ROOMS.get(name, "loopcd.decoding")), name)


__all__ = [
    "MTI",
    "Batch",
    "EarlyExit",
    "Generation",
    "Greedy",
    "HuginnForCausalLM",
    "LoopCD",
    "LoopGuidance",
    "LoopTrace",
    "NanbeigeForCausalLM",
    "NoiseCD",
    "OuroForCausalLM",
    "ParcaeForCausalLM",
    "RetrofitForCausalLM",
    "SelfDraft",
    "SelfEval",
    "TraceWriter",
    "generate",
    "load",
    "loop_logits",
    "read_traces",
    "stream",
]
