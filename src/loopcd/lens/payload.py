"""A trace as the page reads it: facts as JSON, arrays as base64 of little-endian numbers."""

from base64 import b64encode
from typing import Any

import numpy as np

from loopcd.tracing import LoopTrace

_FACTS = ("prompt", "model", "method", "num_loops", "amateur_loop", "strength", "plausibility", "extra", "text")
_TYPES = {"float32": ("f4", "<f4"), "int32": ("i4", "<i4"), "int16": ("i2", "<i2")}
_ARRAYS = (
    *("token_ids", "exit_loop", "winner", "logit", "runner_up", "log_norm", "entropy", "change", "top_ids", "top_logits"),
    *("plausible_start", "plausible_count", "plausible_ids", "plausible_logits", "unconstrained"),
)


def whole(trace: LoopTrace) -> dict[str, Any]:
    """What holds for the whole text, and what was said of its tokens."""
    return {**{name: getattr(trace, name) for name in _FACTS}, **tokens(trace)}


def tokens(trace: LoopTrace) -> dict[str, Any]:
    return {
        "pieces": list(trace.pieces),
        "token_texts": {str(token): text for token, text in trace.token_texts.items()},
        "arrays": {name: _array(getattr(trace, name)) for name in _ARRAYS},
    }


def _array(values: np.ndarray) -> dict[str, Any]:
    short, stored = _TYPES[str(values.dtype)]
    return {"type": short, "data": b64encode(np.ascontiguousarray(values, stored).tobytes()).decode("ascii")}
