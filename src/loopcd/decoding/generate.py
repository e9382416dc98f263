"""`loopcd.generate` and `loopcd.stream`: texts in, texts out."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from loopcd.decoding import checks
from loopcd.decoding.chat import Messages, chat_ids, end_tokens, is_chat, text_ids
from loopcd.decoding.flight import Row
from loopcd.decoding.loop import Job, Rows, Sampling, Step
from loopcd.decoding.methods import LoopCD, Method
from loopcd.decoding.passes import loop_seconds
from loopcd.decoding.texts import Interruptible, StopTexts, TextPieces, pad_left, trim
from loopcd.decoding.ticks import Ticks
from loopcd.models.memory import rows_that_fit
from loopcd.models.stages import LoopedModel

Prompt = str | Sequence[int] | Messages
log = logging.getLogger("loopcd")
AHEAD = 8  # prompts that are taken on for each that is in memory: a text that ends gives its place to the next
SMALL = 10**8  # weights: from so many on a loop takes long on any machine
HOST = 2e-3  # seconds: what a tick's own work takes the host of a busy machine
FIXED = 0.3  # share of a loop that is the same for any number of rows
MANY = 32  # texts at once: with fewer of a small model, on a device that is not timed, a tick's own work weighs more


@dataclass(frozen=True)
class Generation:
    """What was made of one prompt."""

    text: str  # without special tokens, up to the first stop string
    token_ids: list[int]  # all that was generated, the end token and a stop string's tokens included
    finish_reason: Literal["stop", "length"]
    loops: list[int]  # loops run for each token
    contested: int  # tokens at whose position more than one was plausible; 0 by methods that do not ask
    touched: int  # tokens at whose position the method's rule intervened
    trace: Any = None  # a LoopTrace, where one was asked for


@dataclass(frozen=True)
class Made:
    """What was generated together, as a tracer gets it; lists of equal length."""

    model: LoopedModel
    tokenizer: Any
    method: Method
    num_loops: int | None
    prompts: Sequence[str | Sequence[int]]
    made: list[Generation]
    numbers: list[int]  # from which draws follow, usually the places in the call
    init_seeds: list[int | None]  # of the initial states that the texts came from


def by_ticks(method: Method, model: LoopedModel, rows: int | None = None) -> bool:
    """Whether texts go on each at its own loop, which needs a method for it and a model on one device.

    With `rows` texts at once, also whether it pays, by what loops take: texts in step wait for the last of them to leave the
    loop, or to end, which costs little where a loop takes less than what the host does around it, or where most of what it
    takes is for each row, since rows that have left or ended cost nothing.
    """
    if not method.by_ticks or rows == 1 or len({weight.device for weight in model.parameters()}) > 1:
        return False
    if rows is None or method.draft is not None or sum(weight.numel() for weight in model.parameters()) >= SMALL:
        return True
    one, all_rows = loop_seconds(model, 1), loop_seconds(model, rows)
    if one is None or all_rows is None:  # not timed
        return method.exit is not None or rows >= MANY
    return one > HOST and one > FIXED * all_rows


@dataclass(frozen=True)
class Request:
    """The arguments of a call, checked once."""

    model: LoopedModel
    tokenizer: Any
    method: Method
    max_new_tokens: int
    stop: str | Sequence[str]  # kept as a tuple
    temperature: float
    top_p: float
    seed: int
    init_seed: int | None
    num_loops: int | None
    chat: bool = False  # some prompt is a conversation
    enable_thinking: bool | None = None  # as its template takes it
    rows: int | None = None  # texts at once at most; None: they go on each at its own loop whatever that costs
    interrupt: Callable[[], None] | None = None  # asked after every token

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        if not hasattr(self.model, "advance"):  # whatever wraps a looped model hands this on
            shown = repr(self.model) if isinstance(self.model, str) else type(self.model).__name__
            raise ValueError(f"model={shown}: a looped model, as in model, tokenizer = loopcd.load(NAME)")
        if not isinstance(self.method, Method):
            raise ValueError(f"method={self.method!r}: a method such as loopcd.Greedy() or loopcd.LoopCD()")
        checks.whole("max_new_tokens", self.max_new_tokens, 1)
        checks.temperature("temperature", self.temperature)
        checks.share("top_p", self.top_p)
        checks.whole("seed", self.seed)
        if any(not isinstance(stop, str) or not stop for stop in self.stop):
            raise ValueError(f"stop={self.stop!r}: stop strings of at least one character")
        if self.stop and self.tokenizer is None:
            raise ValueError(f"stop={self.stop!r} needs a tokenizer, but the model came without one")

    def encode(self, prompt: Prompt, name: str) -> list[int]:
        if isinstance(prompt, str) and self.tokenizer is None:
            raise ValueError(f"{name} is a text, but the model came without a tokenizer: pass token ids")
        given: Any = prompt
        try:
            if isinstance(prompt, str):
                given = text_ids(self.tokenizer, prompt)
            elif is_chat(prompt):
                given = chat_ids(self.tokenizer, prompt, name, self.enable_thinking)  # pyright: ignore[reportArgumentType]
            ids = [index(token) for token in given]
        except TypeError as error:
            raise ValueError(f"{name}={prompt!r}: a text, a list of messages, or a list of token ids") from error
        if not ids:
            raise ValueError(f"{name} is empty: a prompt needs at least one token")
        last = self.model.config.vocab_size - 1
        if wrong := [token for token in (min(ids), max(ids)) if not 0 <= token <= last]:
            raise ValueError(f"{name} holds token id {wrong[0]}: the vocabulary has ids 0 to {last}")
        if len(ids) >= self.room:
            raise ValueError(
                f"{name} has {len(ids)} tokens: the model's context of {self.model.max_context} leaves room for {self.room - 1}"
            )
        return ids

    def steps(self, prompt: Prompt) -> Iterator[Step]:
        """What is made of one prompt, token by token; settings that do not fit the model are refused at once."""
        self.method.check(self.model, self.num_loops, self.tokenizer)
        return self.method.steps(self.job([self.encode(prompt, "prompt")], [0]))

    @property
    def by_ticks(self) -> bool:
        return by_ticks(self.method, self.model, self.rows)

    @cached_property
    def ends(self) -> set[int]:
        return end_tokens(self.model, self.tokenizer, self.chat)

    @property
    def room(self) -> int:
        return self.model.max_context - self.method.reserve(self.tokenizer)

    def job(self, prompts: Sequence[Sequence[int]], numbers: Sequence[int]) -> Job:
        """One batch; `numbers` are the prompts' own, from which their draws follow."""
        pad = getattr(self.tokenizer, "pad_token_id", None)
        pad = pad if pad is not None else (self.model.config.pad_token_id or 0)
        ids, mask = pad_left(prompts, pad, self.model.device)
        length = min(ids.shape[1] + self.max_new_tokens, self.room)
        stopping = StoppingCriteriaList([MaxLengthCriteria(length)])
        if self.ends:
            stopping.append(EosTokenCriteria(sorted(self.ends)))
        if self.stop:
            stopping.append(StopTexts(self.tokenizer, self.stop, ids.shape[1]))
        if self.interrupt is not None:
            stopping.append(Interruptible(self.interrupt))
        return Job(
            self.model,
            ids,
            None if bool(mask.all()) else mask,
            stopping,
            Sampling() if self.temperature == 0 else Sampling.drawn(self.temperature, self.top_p, self.seed, numbers),
            self.tokenizer,
            pad_token_id=pad,
            num_loops=self.num_loops,
            init_seed=self.init_seed,
            limit=length + self.method.reserve(self.tokenizer),
            numbers=numbers,
        )

    def rows_at_once(self, longest: int, wanted: int) -> int:
        """As many of the texts, of prompts of up to `longest` tokens, as there is memory for."""
        wanted = min(wanted, _ran_out.get(self.model, wanted))
        if wanted == 1:
            return 1
        fitting = rows_that_fit(self.model, min(longest + self.max_new_tokens, self.model.max_context), self.num_loops)
        if fitting is None or fitting >= wanted:
            return wanted
        log.info("memory for %d of %d texts at once", fitting, wanted)
        return max(1, fitting)

    def generation(self, rows: Rows, row: int) -> Generation:
        count = int(rows.going[row].sum())
        tokens = rows.tokens[row, :count].tolist()
        text, stopped = "", False
        if self.tokenizer is not None:
            text, stopped = trim(self.tokenizer.decode(tokens, skip_special_tokens=True), self.stop)
            stopped = stopped or trim(self.tokenizer.decode(tokens), self.stop)[1]  # at the text of a special token
        return Generation(
            text=text,
            token_ids=tokens,
            finish_reason="stop" if stopped or tokens[-1] in self.ends else "length",
            loops=rows.loops[row, :count].tolist(),
            contested=int(rows.contested[row, :count].sum()),
            touched=int(rows.touched[row, :count].sum()),
        )


def generate(
    model: LoopedModel,
    tokenizer: Any,
    prompts: Prompt | Sequence[Prompt],
    method: Method = LoopCD(),  # noqa: B008 (frozen)
    *,
    max_new_tokens: int = 256,
    stop: str | Sequence[str] = (),
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    init_seed: int | None = None,
    batch_size: int = 8,
    trace: Callable[[Made], Sequence[Any] | None] | None = None,
    num_loops: int | None = None,
    numbers: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    interrupt: Callable[[], None] | None = None,
    enable_thinking: bool | None = None,
    ended: Callable[[int, Generation], None] | None = None,
) -> Any:
    """Continue a prompt (a Generation), or each of a list of prompts (a list of them), by the method: LoopCD with the model's
    preset unless another is given.

    A prompt is a text, a list of token ids, or a conversation: a list of messages {"role", "content"}, for the chat template.
    `enable_thinking` is handed to the template where that has such a switch.

    Prompts of like length run together, `batch_size` at a time; neither that nor their order changes what is made of one.
    `init_seed=None` is Huginn's zero initial state, an integer draws it. `progress` is called with (done, all).
    `ended` is called with a prompt's place in the call and its text as soon as that ends.
    `interrupt` is called after every token of every candidate; what it raises ends the generation.
    What is drawn for a prompt follows from `seed` and its number: its place in the call, unless `numbers` gives others.
    `trace` is a function that gets each batch and gives its traces. `loopcd.generate` takes True instead (each Generation gets
    a LoopTrace), or a TraceWriter, to which the traces of each batch then go.
    """
    if trace is not None and not callable(trace):  # tracing comes after decoding, so it is handed in
        raise ValueError(f"trace={trace!r}: a function of a batch that gives its traces; loopcd.generate takes trace=True")
    checks.whole("batch_size", batch_size, 1)
    drawn = (max_new_tokens, stop, temperature, top_p, seed, init_seed)
    request = Request(model, tokenizer, method, *drawn, num_loops, enable_thinking=enable_thinking, interrupt=interrupt)
    # a message without a list is refused as the one prompt that it is not: its keys are none either
    single = isinstance(prompts, str | Mapping) or is_chat(prompts) or _are_ids(prompts)
    try:
        given: Any = [prompts] if single else list(prompts)
    except TypeError as error:
        raise ValueError(f"prompts={prompts!r}: a text, a list of messages, a list of token ids, or a list of these") from error
    request = replace(request, chat=any(map(is_chat, given)), rows=min(batch_size, max(1, len(given))))
    encoded = [request.encode(prompt, "prompt" if single else f"prompts[{i}]") for i, prompt in enumerate(given)]
    own = range(len(encoded)) if numbers is None else numbers
    if len(own) != len(encoded):
        raise ValueError(f"numbers has {len(own)} entries for {len(encoded)} prompts: one a prompt")
    made: dict[int, Generation] = {}

    def take(place: int, text: Generation) -> None:
        if place in made:  # memory ran out, and it was made again
            return
        made[place] = text
        if progress is not None:
            progress(len(made), len(encoded))
        if ended is not None:
            ended(place, text)

    for batch in _batches(encoded, batch_size if trace is not None else AHEAD * batch_size, batch_size, request):
        at_once = None if trace is not None else lambda at, text, batch=batch: take(batch[at], text)
        texts, seeds = _texts(request, [encoded[i] for i in batch], [own[i] for i in batch], batch_size, at_once)
        if trace is not None:  # a text that is to be traced is not ready before that
            traced = ([encoded[i] if is_chat(given[i]) else given[i] for i in batch], texts, [own[i] for i in batch], seeds)
            traces = trace(Made(model, tokenizer, method, num_loops, *traced)) or [None] * len(batch)
            texts = [replace(text, trace=each) for text, each in zip(texts, traces, strict=True)]
        for place, text in zip(batch, texts, strict=True):
            take(place, text)
    return made[0] if single else [made[i] for i in range(len(encoded))]


def _are_ids(prompts: Any) -> bool:
    """Whether this is one prompt, as token ids."""
    return isinstance(prompts, Sequence) and bool(prompts) and all(isinstance(token, int) for token in prompts)


def _batches(encoded: list[list[int]], ahead: int, size: int, request: Request) -> Iterator[list[int]]:
    """Prompts by length. Where rows need not keep step, `ahead` at a time, of which `size` are in memory, the longest first:
    the last to end should not have begun last. Elsewhere as many as fit into memory; one that may reach the end of the context
    runs alone there, so that it cannot cut others short."""
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    if request.by_ticks:
        order.reverse()
        yield from (order[start : start + ahead] for start in range(0, len(order), ahead))
        return
    fitting = [i for i in order if len(encoded[i]) + request.max_new_tokens <= request.room]
    left = fitting
    while left:
        batch = left[:size]
        rows = request.rows_at_once(len(encoded[batch[-1]]), len(batch))
        yield batch[:rows]
        left = left[rows:]
    yield from ([i] for i in order[len(fitting) :])


_ran_out: "WeakKeyDictionary[LoopedModel, int]" = WeakKeyDictionary()  # texts at once, since memory ran out with more


def _texts(
    request: Request, prompts: Sequence[Sequence[int]], numbers: Sequence[int], size: int, ended: Any
) -> tuple[list[Generation], list[Any]]:
    """What is made of these prompts, `size` together, and the seeds of their initial states; fewer where memory runs out."""
    size, ticks = min(size, len(prompts)), request.by_ticks and len(prompts) > 1
    try:
        if ticks:
            return _by_ticks(request, prompts, numbers, size, ended), [request.init_seed] * len(prompts)
        rows = request.method.rows(request.job(prompts, numbers))
        made = [request.generation(rows, row) for row in range(len(prompts))]
        return made, rows.init_seeds or [request.init_seed] * len(prompts)
    except torch.OutOfMemoryError:
        if size == 1 or request.model in _ran_out:  # once is bad luck, twice is a wrong setting
            raise
    half = (size + 1) // 2
    _ran_out[request.model] = half
    log.warning("out of memory with %d texts at once: going on with %d, nothing is lost", size, half)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if ticks:
        return _texts(request, prompts, numbers, half, ended)
    parts = [_texts(request, prompts[at], numbers[at], half, ended) for at in (slice(half), slice(half, None))]
    return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]


def _by_ticks(
    request: Request, prompts: Sequence[Sequence[int]], numbers: Sequence[int], size: int, ended: Any
) -> list[Generation]:
    ticks = Ticks(request.model, request.rows_at_once(max(map(len, prompts)), size), request.num_loops)
    rows = [Row(request.method, request.job([each], [at])) for each, at in zip(prompts, numbers, strict=True)]
    for row in rows:
        ticks.add(row)
    places, made = {row: at for at, row in enumerate(rows)}, dict[int, Generation]()
    for row in ticks.run():
        if row.error is not None:
            raise row.error
        at = places[row]
        made[at] = request.generation(row.rows(), 0)
        if ended is not None:
            ended(at, made[at])
    return [made[at] for at in range(len(rows))]


def stream(
    model: LoopedModel,
    tokenizer: Any,
    prompt: Prompt,
    method: Method = LoopCD(),  # noqa: B008 (frozen)
    *,
    max_new_tokens: int = 256,
    stop: str | Sequence[str] = (),
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    init_seed: int | None = None,
    num_loops: int | None = None,
    enable_thinking: bool | None = None,
) -> Iterator[str]:
    """The text of `generate`, piece by piece as it is made; together the pieces are that text."""
    drawn = (max_new_tokens, stop, temperature, top_p, seed, init_seed)
    request = Request(model, tokenizer, method, *drawn, num_loops, is_chat(prompt), enable_thinking)
    if tokenizer is None:
        raise ValueError("stream yields text, but the model came without a tokenizer")
    return _pieces(request.steps(prompt), TextPieces(tokenizer, request.stop))


def _pieces(made: Iterator[Step], pieces: TextPieces) -> Iterator[str]:
    for step in made:
        if piece := pieces.add(int(step.tokens[0])):
            yield piece
    if rest := pieces.end():
        yield rest


def stream_tokens(
    model: LoopedModel, tokenizer: Any, prompt: Prompt, method: Method, max_new_tokens: int, stop: Any, num_loops: int | None
) -> Iterator[tuple[int, int]]:
    """The tokens of `generate` at temperature 0 as they are made, each with the loops that were run for it."""
    request = Request(model, tokenizer, method, max_new_tokens, stop, 0.0, 1.0, 0, None, num_loops, is_chat(prompt))
    return ((int(step.tokens[0]), int(step.loops[0])) for step in request.steps(prompt))
