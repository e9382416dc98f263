"""`loopcd.Batch`: prompts handed in one by one, from any thread, that go on together; each text as soon as it ends."""

from collections.abc import Iterator, Sequence
from threading import Condition
from typing import Any, Literal
from weakref import WeakValueDictionary

from loopcd.decoding import checks
from loopcd.decoding.chat import is_chat
from loopcd.decoding.flight import Row
from loopcd.decoding.generate import Generation, Prompt, Request
from loopcd.decoding.methods import LoopCD, Method
from loopcd.decoding.ticks import Ticks
from loopcd.models.stages import LoopedModel

Ended = Literal["stop", "length", "context", "cancelled", "failed"]


class Handle:
    """A prompt that was handed in."""

    def __init__(self, batch: "Batch", prompt: Prompt, row: Row, request: Request) -> None:
        self.prompt, self._batch, self._row, self._request = prompt, batch, row, request
        self.ended: Ended | None = None  # None: not yet
        self._made: Generation | None = None

    def result(self) -> Generation:
        """What was made; waits for it, and raises what went wrong."""
        while self.ended is None:
            self._batch._work()
        self._batch._asked(self)
        if self._row.error is not None:
            raise self._row.error
        if self._made is None:
            raise ValueError("this prompt was cancelled: it has no result")
        return self._made

    def cancel(self) -> bool:
        """Take it out, wherever it is; False if it had ended before."""
        return self._batch._cancel(self)

    @property
    def token_ids(self) -> list[int]:
        """What was made so far."""
        return list(self._row.tokens)

    def _end(self) -> None:
        row = self._row
        try:
            self.ended = "failed" if row.error is not None else self._reason()
        except Exception as error:  # the tokenizer's, and no other prompt's trouble
            row.error, self.ended = error, "failed"

    def _reason(self) -> Ended:
        """Why it ended; its result is made ready."""
        request, row = self._request, self._row
        self._made = made = request.generation(row.rows(), 0)
        full = row.prompt_tokens + len(row.tokens) >= request.room and len(row.tokens) < request.max_new_tokens
        return "context" if made.finish_reason == "length" and full else made.finish_reason


class Batch:
    """Up to `rows` texts in memory at a time, each by its own method and at its own loop; others wait for a place.

    `submit` hands a prompt in. Iterating gives the handles of the texts as they end, until nothing is left. The work is done by
    whichever thread waits for a result; neither the others in the batch nor the order changes what is made of a prompt.
    """

    def __init__(self, model: LoopedModel, tokenizer: Any = None, *, rows: int = 16, num_loops: int | None = None) -> None:
        checks.whole("rows", rows, 1)
        self.model, self.tokenizer, self.num_loops = model, tokenizer, num_loops
        self._ticks = Ticks(model, min(rows, model.max_context), num_loops)
        self._handles: dict[Row, Handle] = {}  # on their way
        # ended and not given out yet: what nobody has asked for is kept, other handles as long as somebody else has them
        self._ended: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        self._unasked: set[Handle] = set()
        self._changed = Condition()
        self._working = False  # some thread is at a tick, without the lock
        self._dropped: list[Row] = []  # to be taken out after it
        self._added: list[Row] = []
        self._count = 0

    def submit(
        self,
        prompt: Prompt,
        method: Method = LoopCD(),  # noqa: B008 (frozen)
        *,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        init_seed: int | None = None,
        number: int | None = None,
    ) -> Handle:
        """Hand a prompt in. Draws follow from `seed` and `number`: how many were handed in before, unless it is given."""
        drawn = (max_new_tokens, stop, temperature, top_p, seed, init_seed, self.num_loops)
        request = Request(self.model, self.tokenizer, method, *drawn, chat=is_chat(prompt))
        if not request.by_ticks:
            raise ValueError(
                f"method={method!r}: a Batch takes methods that choose token by token, undrafted, and a model on one device"
            )
        method.check(self.model, self.num_loops, self.tokenizer)
        ids = request.encode(prompt, "prompt")
        with self._changed:
            row = Row(method, request.job([ids], [self._count if number is None else number]))
            self._count += 1
            handle = self._handles[row] = Handle(self, prompt, row, request)
            self._added.append(row)
            self._changed.notify_all()
        return handle

    def __iter__(self) -> Iterator[Handle]:
        while True:
            with self._changed:
                handle = self._first_ended()
                if handle is None and not self._handles:
                    return
            if handle is None:
                self._work()
            else:
                yield handle

    def _asked(self, handle: Handle) -> None:
        with self._changed:
            self._unasked.discard(handle)

    def _first_ended(self) -> Handle | None:
        handle = next(iter(self._ended.values()), None)
        if handle is not None:
            del self._ended[id(handle)]
            self._unasked.discard(handle)
        return handle

    def __len__(self) -> int:
        """Prompts that have not ended."""
        return len(self._handles)

    def _cancel(self, handle: Handle) -> bool:
        with self._changed:
            if handle.ended is not None:
                return False
            handle.ended = "cancelled"
            del self._handles[handle._row]
            self._dropped.append(handle._row)
            self._changed.notify_all()
            return True

    def _work(self) -> None:
        """One tick; where another thread is at it, wait for that one instead."""
        with self._changed:
            if self._working:
                self._changed.wait()
                return
            self._working = True
            for row in self._added:
                self._ticks.add(row)
            gone, self._added, self._dropped = self._dropped, [], []
        ended: list[Row] = []
        try:
            for row in gone:
                self._ticks.drop(row)
            ended = self._ticks.step()
        except BaseException as error:
            ended = self._failed(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._changed:
                self._working = False
                for row in ended:
                    self._end(row)
                self._changed.notify_all()

    def _failed(self, error: BaseException) -> list[Row]:
        """The texts that a tick took down, as nobody knows how far it came; those that wait go on with new ones."""
        with self._changed:
            broken, self._ticks = self._ticks, Ticks(self.model, self._ticks.places.rows, self.num_loops)
            for row in broken.waiting:
                self._ticks.add(row)
            lost = [row for row in self._handles if row not in broken.waiting and row not in self._added]
        for row in lost:
            row.error = error if isinstance(error, Exception) else RuntimeError("the work on this prompt was interrupted")
        return lost

    def _end(self, row: Row) -> None:
        handle = self._handles.pop(row, None)  # None: cancelled during its last tick
        if handle is not None:
            handle._end()
            self._unasked.add(handle)
            self._ended[id(handle)] = handle
