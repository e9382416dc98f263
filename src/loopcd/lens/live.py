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

SIDES = ("left", "right")


def live_events(
    engine: LocalEngine,
    prompt: str | Messages,
    methods: Sequence[Method],
    max_new_tokens: int,
    stop: tuple[str, ...] = (),
    interrupt: Callable[[], None] | None = None,
) -> Generator[dict[str, Any], None, None]:
    """A `start` for each method, a `token` for each token of each (in turn, while they last), an `end` for each.

    What `interrupt` raises ends it, also where a method thinks for long before its first token.
    """
    if engine.tokenizer is None:
        raise ValueError(f"{engine.name} came without a tokenizer, so it cannot read a prompt")
    setting = setting_of(engine, methods)
    made = [
        _Side(engine, prompt, method, side, setting, {"max_new_tokens": max_new_tokens, "stop": stop}, interrupt)
        for side, method in zip(SIDES, methods, strict=False)
    ]
    for each in made:
        yield {"event": "start", "side": each.side, "trace": each.header()}
    while made:
        for each in list(made):
            try:
                yield each.next_token()
            except StopIteration:
                made.remove(each)
                yield each.end()
    yield {"event": "done"}


class _Side:
    """One method at work, and a tracer that reads along."""

    def __init__(
        self,
        engine: LocalEngine,
        prompt: str | Messages,
        method: Method,
        side: str,
        setting: dict[str, Any],
        options: dict[str, Any],
        interrupt: Callable[[], None] | None,
    ) -> None:
        ids = prompt_ids(engine.tokenizer, prompt)
        self.side = side
        self.prompt = prompt if isinstance(prompt, str) else engine.tokenizer.decode(ids)  # as the template wrote it
        self.tokens = _tokens(engine, prompt, method, {**options, "num_loops": engine.num_loops}, interrupt)
        self.tracer = LiveTracer(
            engine.model, engine.tokenizer, ids, **setting, num_loops=engine.num_loops, method=describe(method)
        )
        self.held: list[int] = []  # tokens that are not yet whole characters

    def header(self) -> dict[str, Any]:
        setting = self.tracer.setting
        return {
            "prompt": self.prompt,
            "method": self.tracer.method,
            "num_loops": setting.num_loops,
            "amateur_loop": setting.amateur_loop,
            "strength": setting.strength,
            "plausibility": setting.plausibility,
        }

    def next_token(self) -> dict[str, Any]:
        token, loops = next(self.tokens)
        said = payload.tokens(self.tracer.add(token, loops))
        return {"event": "token", "side": self.side, "trace": {**said, "pieces": [self._piece(token)]}}

    def _piece(self, token: int) -> str:
        self.held.append(token)
        text = self.tracer.tokenizer.decode(self.held)
        if text.endswith(BROKEN):
            return ""
        self.held = []
        return text

    def end(self) -> dict[str, Any]:
        """The whole trace, in which the text's pieces are those of the finished text."""
        return {"event": "end", "side": self.side, "trace": {**payload.whole(self.tracer.trace()), "prompt": self.prompt}}


def _tokens(
    engine: LocalEngine, prompt: str | Messages, method: Method, options: dict[str, Any], interrupt: Callable[[], None] | None
) -> Iterator[tuple[int, int]]:
    if isinstance(method, SelfEval):  # knows its answer only when all candidates are written
        made = generate(engine.model, engine.tokenizer, prompt, method, **options, interrupt=interrupt)
        return iter(zip(made.token_ids, made.loops, strict=True))
    return stream_tokens(engine.model, engine.tokenizer, prompt, method, **options)
