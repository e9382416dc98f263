"""EvalPlus's own check of one function on one set of tests, in a process of its own that shares the verdict with us."""

import mmap
import multiprocessing
import os
from ctypes import c_byte, c_int
from dataclasses import dataclass
from typing import Any

from evalplus.config import (  # pyright: ignore[reportMissingImports]
    DEFAULT_GT_TIME_LIMIT_FACTOR,
    DEFAULT_MIN_TIME_LIMIT,
)
from evalplus.eval import FAIL, PASS, TIMEOUT, unsafe_execute  # pyright: ignore[reportMissingImports]

_SUCCESS, _FAILED, _UNKNOWN = 0, 1, 3  # EvalPlus's numbers
_MOST_SECONDS = 60  # for all tests together, as EvalPlus has it


@dataclass(frozen=True)
class Tests:
    """What a function is called with, what should come back, and how long the reference took for each."""

    dataset: str
    entry_point: str
    inputs: list[Any]
    expected: list[Any]
    seconds: list[float]
    tolerance: float


@dataclass(frozen=True)
class Checked:
    verdict: str  # EvalPlus's words
    in_time: bool  # whether the process ended by itself
    remark: int  # what the code under test left in `remarks()`


_REMARK: list[c_int] = []


def remarks() -> c_int:
    """A number, shared with the process that called `check`, for code under test that is ours."""
    return _REMARK[0]


def check(tests: Tests, code: str) -> Checked:
    """Define `code`, call its function on the tests, compare; until the first that fails."""
    number = len(tests.inputs)
    shared = mmap.mmap(-1, 16 + number)  # not multiprocessing's, which needs a folder to write to
    stat, progress, remark = (c_int.from_buffer(shared, 4 * place) for place in range(3))
    details = (c_byte * number).from_buffer(shared, 16)
    stat.value, _REMARK[:] = _UNKNOWN, [remark]
    limits = [max(DEFAULT_MIN_TIME_LIMIT, DEFAULT_GT_TIME_LIMIT_FACTOR * seconds) for seconds in tests.seconds]
    arguments = (tests.dataset, tests.entry_point, code, tests.inputs, tests.expected, limits, tests.tolerance, True)
    process = multiprocessing.Process(target=_apart, args=(*arguments, stat, details, progress))
    process.start()
    process.join(min(_MOST_SECONDS, sum(limits)) + 2)
    in_time = not process.is_alive()
    process.kill()
    process.join()
    verdict = {_SUCCESS: PASS, _FAILED: FAIL}.get(stat.value, TIMEOUT)
    if verdict == PASS and not (progress.value == number and all(details)):
        verdict = FAIL
    return Checked(verdict, in_time, remark.value)


def _apart(*arguments: Any) -> None:
    os.setsid()  # a signal to its group stays within it
    unsafe_execute(*arguments)
