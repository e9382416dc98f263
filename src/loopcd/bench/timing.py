"""Timing things alternately, and what is made of the times: ratios with their spread.

A machine is never equally fast for long. So nothing is timed alone: a round times every task once, the rounds follow each
other, and a ratio is taken within each round, between things that ran next to each other. What is reported is the median of
the rounds' ratios, and as spread their 10th and 90th percentile.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """An amount of work (tokens, bytes) and the time that it took."""

    amount: float
    wall: float  # seconds
    cpu: float  # seconds of this process

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(self.amount + other.amount, self.wall + other.wall, self.cpu + other.cpu)

    @property
    def rate(self) -> float:
        return self.amount / self.wall

    @property
    def cpu_rate(self) -> float:
        return self.amount / self.cpu


NOTHING = Sample(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Spread:
    """The median of the rounds, and their 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not len(values):
            raise ValueError("no rounds: a spread needs at least one value")
        low, median, high = (float(x) for x in np.percentile(np.asarray(values, dtype=float), [10, 50, 90]))
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}–{self.high:.3f})"


def settle() -> None:
    """Wait until a GPU, where there is one, has done what it was told: else its time is counted to whoever asks next."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


class Stopwatch:
    """Adds up the time between `running` blocks."""

    wall = cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        settle()
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            settle()
            self.cpu += time.process_time() - cpu
            self.wall += time.perf_counter() - wall

    def sample(self, amount: float) -> Sample:
        return Sample(amount, self.wall, self.cpu)


def timed(work: Callable[[], float]) -> Sample:
    """The amount that the work comes to, and the time that it took."""
    watch = Stopwatch()
    with watch.running():
        amount = work()
    return watch.sample(amount)


Timed = Callable[[], Sample]
Say = Callable[[str], None]  # is told what is under way


def alternately(
    tasks: Mapping[str, Callable[[], T]], rounds: int, warm_up: int = 1, seconds: float | None = None
) -> dict[str, list[T]]:
    """Each task's samples, one a round. Every second round runs the tasks in reverse; `warm_up` rounds are not counted.

    No round begins after `seconds`, but one is always run.
    """
    start = time.perf_counter()
    samples: dict[str, list[T]] = {name: [] for name in tasks}
    for number in range(warm_up + rounds):
        if number > warm_up and seconds is not None and time.perf_counter() - start > seconds:
            break
        for name in list(tasks)[:: -1 if number % 2 else 1]:
            sample = tasks[name]()
            if number >= warm_up:
                samples[name].append(sample)
    return samples


def ratio(of: Sequence[Sample], to: Sequence[Sample], cpu: bool = False) -> Spread:
    """How many times as much work `of` does in a second as `to`, round by round."""
    pairs = zip(of, to, strict=True)
    return Spread.of([a.cpu_rate / b.cpu_rate if cpu else a.rate / b.rate for a, b in pairs])


def rates(samples: Sequence[Sample], cpu: bool = False) -> Spread:
    return Spread.of([each.cpu_rate if cpu else each.rate for each in samples])
