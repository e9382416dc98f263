"""What a pass over several tokens costs on this machine, as a multiple of one over one: timed where it can be, else assumed."""

import time
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from loopcd.models.stages import LoopedModel

TIMED = (1, 4, 8)  # tokens; costs between them are interpolated
TRIES = 3


@dataclass(frozen=True)
class PassCosts:
    """Costs of passes over `TIMED` tokens of each row, that over one being 1."""

    costs: tuple[float, ...]
    seconds: float | None = None  # of a loop over one token of each row; None: not timed

    @classmethod
    def assumed(cls, batch: int) -> "PassCosts":
        """As once measured on a CPU with small models: what further tokens add grows with the rows."""
        return cls(tuple(1 + (0.06 + 0.02 * (batch - 1)) * (tokens - 1) for tokens in TIMED))

    def of(self, tokens: int) -> float:
        for (low, before), (high, after) in zip(self._points(), self._points()[1:], strict=False):
            if tokens <= high or high == TIMED[-1]:
                return before + (after - before) * (tokens - low) / (high - low)
        raise ValueError(f"tokens={tokens}: at least 1")

    def _points(self) -> list[tuple[int, float]]:
        return list(zip(TIMED, self.costs, strict=True))


_measured: "WeakKeyDictionary[LoopedModel, dict[int, PassCosts]]" = WeakKeyDictionary()


def pass_costs(model: LoopedModel, batch: int) -> PassCosts:
    """Measured once for a model and a batch size on a CPU, by a few loops; assumed elsewhere."""
    if model.device.type != "cpu":
        return PassCosts.assumed(batch)
    known = _measured.setdefault(model, {})
    if batch not in known:
        known[batch] = _measure(model, batch)
    return known[batch]


@torch.no_grad()
def _measure(model: LoopedModel, batch: int) -> PassCosts:
    states = [model.begin(torch.zeros(batch, tokens, dtype=torch.long)) for tokens in TIMED]
    least = [float("inf")] * len(TIMED)
    for _ in range(TRIES):  # in turn, so that what disturbs does not fall on one of them
        for index, state in enumerate(states):
            start = time.thread_time()
            model.advance(state)
            least[index] = min(least[index], time.thread_time() - start)
    # more tokens never cost less than one, nor more than as many passes
    costs = tuple(min(max(each / least[0], 1.0), tokens) for each, tokens in zip(least, TIMED, strict=True))
    return PassCosts(costs, least[0])
