"""What every loop said about every token."""

from loopcd.tracing.choices import best_plausible, choices, contrast_choices
from loopcd.tracing.files import TraceFile, TraceWriter, read_traces
from loopcd.tracing.generate import describe, generate
from loopcd.tracing.live import LiveTracer
from loopcd.tracing.record import Written, trace_texts
from loopcd.tracing.trace import LoopTrace

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
