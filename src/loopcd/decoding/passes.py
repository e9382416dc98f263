"""What a pass over several tokens costs on this machine, as a multiple of one over one: timed where it can be, else assumed."""

import itertools
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from loopcd.models.cache import LoopCache
from loopcd.models.slots import Slot
from loopcd.models.stages import LoopedModel

TIMED = (1, 2, 4, 8)  # tokens; costs between them are interpolated; of two, a product may cost as much as of four
TRIES, LEAST = 3, 0.03  # at least so many tries, and of short ones as many as take so many seconds
CONTEXT = 64  # columns that the timed passes see
TICK = 300  # small operators that take the host as long as what it does beside a tick's loop, as once measured


@dataclass(frozen=True)
class PassCosts:
    """Costs of passes over `TIMED` tokens of each row, that over one being 1."""

    costs: tuple[float, ...]
    host: float | None = None  # what the host does beside a tick's loop, in loops over one token of each row; None: not timed
    beginning: float | None = None  # of one token, in such loops
    readout: float | None = None  # of one token with the head, in such loops

    @classmethod
    def assumed(cls, batch: int) -> "PassCosts":
        """As once measured on a CPU with small models: what further tokens add grows with the rows."""
        return cls(tuple(1 + (0.06 + 0.02 * (batch - 1)) * (tokens - 1) for tokens in TIMED))

    def of(self, tokens: float) -> float:
        at = min(max(1, bisect_left(TIMED, tokens)), len(TIMED) - 1)  # beyond the last, as between the last two
        (low, high), (before, after) = TIMED[at - 1 : at + 1], self.costs[at - 1 : at + 1]
        return before + (after - before) * (tokens - low) / (high - low)


_measured: "WeakKeyDictionary[LoopedModel, dict[int, PassCosts]]" = WeakKeyDictionary()


def pass_costs(model: LoopedModel, batch: int) -> PassCosts:
    """Measured on a CPU by a few loops, once for a model and the next power of two rows; assumed elsewhere."""
    if model.device.type != "cpu":
        return PassCosts.assumed(batch)
    known, rows = _measured.setdefault(model, {}), alike(batch)
    if rows not in known:
        known[rows] = _measure(model, rows)
    return known[rows]


def alike(batch: int) -> int:
    """The rows for which a batch of so many counts: a batch that shrinks is not measured at every size."""
    return 1 << (batch - 1).bit_length()


_loops: "WeakKeyDictionary[LoopedModel, dict[int, float]]" = WeakKeyDictionary()


@torch.no_grad()
def loop_seconds(model: LoopedModel, rows: int) -> float | None:
    """What a loop over one token of each of so many rows takes, timed once on a CPU; None elsewhere."""
    if model.device.type != "cpu" or "flash" in (model.config._attn_implementation or ""):
        return None
    known, rows = _loops.setdefault(model, {}), alike(rows)
    if rows not in known:
        state, least = model.begin(torch.zeros(rows, 1, dtype=torch.long), _OneSlot()), float("inf")
        for _ in _tries():
            begun = time.thread_time()
            model.advance(state)
            least = min(least, time.thread_time() - begun)
        known[rows] = least
    return known[rows]


def _tries() -> Iterator[int]:
    begun = time.thread_time()
    for tried in itertools.count():
        if tried >= TRIES and time.thread_time() - begun > LEAST:
            return
        yield tried


class _OneSlot(LoopCache):
    """All layers keep what they see in one place: as much work as with a place each, in little memory."""

    def slot(self, index: int) -> Slot:
        return super().slot(0)


@torch.no_grad()
def _measure(model: LoopedModel, batch: int) -> PassCosts:
    """In the middle of texts of different lengths: attention and masks take their share, and of one token a larger one."""
    lengths = torch.full((batch,), max(1, min(CONTEXT, model.max_context - TIMED[-1])))
    lengths[0] -= int(batch > 1)
    cache = _OneSlot()
    cache.batch, cache.length = batch, int(lengths.max())
    ids = torch.zeros(batch, TIMED[-1], dtype=torch.long)
    least, small = [float("inf")] * (len(TIMED) + 3), torch.zeros(1)
    for _ in _tries():  # in turn, so that what disturbs does not fall on one of them
        spent, around = list[float](), list[float]()
        for tokens in TIMED:
            cache.crop_rows(lengths)
            marks = [time.thread_time()]
            state = model.begin(ids[:, :tokens], cache)
            marks.append(time.thread_time())
            state = model.advance(state)
            marks.append(time.thread_time())
            spent.append(marks[2] - marks[1])
            if tokens == 1:
                model.head(model.readout(state, last=True)[:, -1]).argmax(dim=-1)
                around = [marks[1] - marks[0], time.thread_time() - marks[2]]
        begun = time.thread_time()
        for _ in range(TICK // 10):
            small = small + 1
        around.append(10 * (time.thread_time() - begun))
        least = [min(pair) for pair in zip(least, [*spent, *around], strict=True)]
    one = least[0]
    # more tokens never cost less than one, nor more than as many passes
    costs = tuple(min(max(each / one, 1.0), tokens) for each, tokens in zip(least, TIMED, strict=False))
    beginning, readout, host = (each / one for each in least[len(TIMED) :])
    return PassCosts(costs, host, beginning, readout)
