"""Looped language models, and LoopCD: decoding that contrasts the last loop with an early one.

Importing this registers the looped families' model types with transformers' Auto classes, and changes nothing else. It is
quick: torch and transformers are imported when something of them is first needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loopcd.models import registration

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

__version__ = "0.2.0"

registration.register_with_transformers()

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


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


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
