"""Texts and traces token by token, as events for the page."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from loopcd.decoding import Method, SelfEval
from loopcd.decoding.chat import Messages, prompt_ids
from loopcd.decoding.generate import generate, stream_tokens
from loopcd.decoding.texts import BROKEN
from loopcd.evaluation.engine import LocalEngine
from loopcd.lens import payload
from loopcd.lens.examples import setting_of
from loopcd.tracing import LiveTracer, describe

Events = Generator[dict[str, Any], None, None]
Interrupt = Callable[[], None]  # raises when the work is no longer wanted


def live_events(
    engine: LocalEngine,
    prompt: str | Messages,
    methods: Sequence[Method],
    max_new_tokens: int,
    stop: tuple[str, ...] = (),
    interrupt: Interrupt | None = None,
) -> Events:
    """A `start` for each method, a `token` for each token of each (in turn, while they last), an `end` for each.

    What `interrupt` raises ends it, also where a method thinks for long before its first token.
    """
    if engine.tokenizer is None:
        raise ValueError(f"{engine.name} came without a tokenizer, so it cannot read a prompt")
    options = {"max_new_tokens": max_new_tokens, "stop": stop, "num_loops": engine.num_loops}
    going = {
        side: _side(engine, prompt, method, methods, _tokens(engine, prompt, method, options, interrupt))
        for side, method in zip(("left", "right"), methods, strict=False)
    }
    yield from [{**next(events), "side": side} for side, events in going.items()]  # none is shown unless all can begin
    while going:
        for side, events in list(going.items()):
            event = next(events, None)
            if event is None:
                del going[side]
            else:
                yield {**event, "side": side}
    yield {"event": "done"}


def _side(
    engine: LocalEngine,
    prompt: str | Messages,
    method: Method,
    methods: Sequence[Method],
    written: Iterator[tuple[int, int]],
) -> Events:
    """One of the methods at work, and a tracer that reads along."""
    ids = prompt_ids(engine.tokenizer, prompt)
    shown = prompt if isinstance(prompt, str) else engine.tokenizer.decode(ids)  # as the template wrote it
    options = {**setting_of(engine, (method, *methods)), "num_loops": engine.num_loops, "method": describe(method)}
    tracer = LiveTracer(engine.model, engine.tokenizer, ids, **options)
    facts = {name: getattr(tracer.setting, name) for name in ("num_loops", "amateur_loop", "strength", "plausibility")}
    yield {"event": "start", "trace": {"prompt": shown, "method": tracer.method, **facts}}
    held: list[int] = []  # tokens that are not yet whole characters
    for token, loops in written:
        said = payload.tokens(tracer.add(token, loops))
        held.append(token)
        text = engine.tokenizer.decode(held)
        broken = text.endswith(BROKEN)
        yield {"event": "token", "trace": {**said, "pieces": ["" if broken else text]}}
        held = held if broken else []
    # in the whole trace the text's pieces are those of the finished text
    yield {"event": "end", "trace": {**payload.whole(tracer.trace()), "prompt": shown}}


def _tokens(
    engine: LocalEngine, prompt: str | Messages, method: Method, options: dict[str, Any], interrupt: Interrupt | None
) -> Iterator[tuple[int, int]]:
    if isinstance(method, SelfEval):  # knows its answer only when all candidates are written
        made = generate(engine.model, engine.tokenizer, prompt, method, **options, interrupt=interrupt)
        return iter(zip(made.token_ids, made.loops, strict=True))
    return stream_tokens(engine.model, engine.tokenizer, prompt, method, **options)
