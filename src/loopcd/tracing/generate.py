"""`loopcd.generate`: the generation of `loopcd.decoding`, which here also knows how to trace."""

from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any

from loopcd.decoding import LoopCD, Method
from loopcd.decoding.generate import Made
from loopcd.decoding.generate import generate as generate_texts
from loopcd.models.stages import Coda
from loopcd.tracing.files import TraceWriter
from loopcd.tracing.measure import TraceSetting
from loopcd.tracing.record import Written, trace_batch
from loopcd.tracing.trace import LoopTrace


@wraps(generate_texts)
def generate(*args: Any, trace: bool | TraceWriter = False, **options: Any) -> Any:
    if isinstance(trace, TraceWriter):
        return generate_texts(*args, trace=lambda batch: _write(trace, batch), **options)
    if not isinstance(trace, bool):
        raise ValueError(f"trace={trace!r}: True for `Generation.trace`, a TraceWriter to write traces to, or False")
    return generate_texts(*args, trace=trace_made if trace else None, **options)


def trace_made(batch: Made) -> list[LoopTrace]:
    """The traces of what was generated together."""
    method = batch.method
    amateur, strength = None, None
    if isinstance(method, LoopCD):  # an amateur made of several loops is no one loop: the preset's
        amateur, strength = None if method.amateur_loop == "auto" else method.amateur_loop, method.strength
    plausibility = getattr(method, "plausibility", 0.1)
    coda: Coda = getattr(method, "coda", "shared")
    setting = TraceSetting.of(batch.model, batch.num_loops, amateur, strength, plausibility, coda=coda)
    described = describe(method)
    items = [
        Written.of(prompt, made, described, seed, number=number)
        for prompt, made, seed, number in zip(batch.prompts, batch.made, batch.init_seeds, batch.numbers, strict=True)
    ]
    return trace_batch(batch.model, batch.tokenizer, items, setting)


def _write(writer: TraceWriter, batch: Made) -> None:
    for trace in trace_made(batch):
        writer.add(trace)


def describe(method: Method) -> str:
    """The method with those of its settings that are not the usual ones, as one would write it."""
    given = [(each.name, getattr(method, each.name), _usual(each)) for each in fields(method)]
    told = [f"{name}={_shown(value)}" for name, value, usual in given if value != usual]
    return f"{type(method).__name__}({', '.join(told)})"


def _usual(setting: Field[Any]) -> Any:
    return setting.default if setting.default_factory is MISSING else setting.default_factory()


def _shown(value: Any) -> str:
    return getattr(value, "__name__", "…") if callable(value) else repr(value)
