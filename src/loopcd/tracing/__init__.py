"""What every loop said about every token.

Start with `trace.LoopTrace`: the fields, their shapes, what must hold of them, and what a contrast would have chosen. `record`
makes traces of texts and `live` of a text being written, by the figures of `measure`; `generate` is decoding with a trace of
what was made. `files` keeps traces. `writing` writes all files of the package and follows no link.
"""

from loopcd.tracing.files import TraceFile, TraceWriter, read_traces
from loopcd.tracing.generate import describe, generate
from loopcd.tracing.live import LiveTracer
from loopcd.tracing.record import Written, trace_texts
from loopcd.tracing.trace import LoopTrace, best_plausible, choices, contrast_choices

__all__ = [
    "LiveTracer",
    "LoopTrace",
    "TraceFile",
    "TraceWriter",
    "Written",
    "best_plausible",
    "choices",
    "contrast_choices",
    "describe",
    "generate",
    "read_traces",
    "trace_texts",
]
