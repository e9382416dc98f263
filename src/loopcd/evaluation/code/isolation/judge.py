"""Judging a program that wants to be taken for right: it runs in one place, its results are compared in another.

The program's place holds the program and what to call it with, and nothing that tells the right results. The judge's place runs
the reference solution, and has EvalPlus compare: its check is given a function that asks the program's place instead of
computing. So its comparison, special oracles and time limits run where the program cannot reach them, on plain data.
"""

import json
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_byte, c_int
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NoReturn

# pyright: reportMissingImports=false
from evalplus.config import DEFAULT_GT_TIME_LIMIT_FACTOR, DEFAULT_MIN_TIME_LIMIT
from evalplus.data.mbpp import mbpp_deserialize_inputs
from evalplus.eval import FAIL, PASS, TIMEOUT, query_maximum_memory_bytes, unsafe_execute
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.eval.utils import TimeoutException, reliability_guard, swallow_io, time_limit
from evalplus.gen.util import trusted_exec
from evalplus.sanitize import sanitize

from . import plain
from .limits import Limits

READY, RETURNED, RAISED = b"+", b".", b"!"  # one byte; a value follows RETURNED, as plain.py writes it
CHEATED, HONEST = b"c", b"h"
BASE, PLUS, DECOY = range(3)  # what is run; each has a pipe of its own for the replies, so that nothing stale is read
SANITISE_SECONDS = 60.0
_SLOW, _FORGED = 1, 2  # remarks
_SUCCESS, _FAILED, _UNKNOWN = 0, 1, 3  # EvalPlus's numbers
_MOST_SECONDS = 60  # for all tests together, as EvalPlus has it


class Talk:
    """Pipes that nobody else holds, and their ends: the judge asks, the program's place replies."""

    def __init__(self) -> None:
        self.asked, self.asking = os.pipe()
        pipes = [os.pipe() for _ in (BASE, PLUS, DECOY)]
        self.reading, self.replying = [end for end, _ in pipes], [end for _, end in pipes]
        self.of_judge = (self.asking, *self.reading)
        self.of_program = (self.asked, *self.replying)


# -- EvalPlus's own check of one function on one set of tests, in a process of its own that shares the verdict with us ------


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
    remark: int  # what the code under test left in `_REMARK`


_REMARK: list[c_int] = []  # shared with the process that called `check`, for code under test that is ours


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


# -- the program's place: the process that enters it makes the text a program, and starts another for each set of tests -----


def contest(text: str, before: str, limits: Limits, talk: Talk, _: BinaryIO) -> None:
    """What runs in the program's place. The program is what EvalPlus finds in the text; if nothing, with `before` before it."""
    os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = str(limits.memory)
    with os.fdopen(talk.asked, "rb") as asked:
        entry_point = _next(asked)
        try:
            with time_limit(SANITISE_SECONDS):
                code = sanitize(text, entry_point).strip() or sanitize(before + text, entry_point)
        except BaseException:
            os.write(talk.replying[BASE], RAISED)
            return
        os.write(talk.replying[BASE], READY)
        _serve(asked, code, entry_point, talk)


def _next(asked: BinaryIO) -> Any:
    return pickle.load(asked)  # noqa: S301  # from the judge, into a place where nothing can be lost


def _serve(asked: BinaryIO, code: str, entry_point: str, talk: Talk) -> None:
    """Do what the judge asks for until it has no more questions."""
    while True:
        try:
            part, work = _next(asked)
        except EOFError:
            return
        if part == DECOY:
            problem, tests = work  # `problem` is bait too: a program that looks around finds it
            caught = check(tests, code).verdict == PASS
            os.write(talk.replying[DECOY], CHEATED if caught and problem else HONEST)
            continue
        child = os.fork()
        if child == 0:
            _play(code, entry_point, work, talk, part)
        os.close(talk.replying[part])
        asked.peek(1)  # pyright: ignore[reportAttributeAccessIssue]  # the judge asks again, or leaves, when it has seen enough
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _play(code: str, entry_point: str, inputs: list[Any], talk: Talk, part: int) -> NoReturn:
    """In the program's own process: its results, one after the other, until it raises or there is no more to do."""
    try:
        os.setsid()
        os.close(talk.asked)
        for reply in talk.replying[part + 1 :]:
            os.close(reply)
        _call(code, entry_point, inputs, os.fdopen(talk.replying[part], "wb"))
    except BaseException:
        os._exit(1)
    os._exit(0)


def _call(code: str, entry_point: str, inputs: list[Any], reply: BinaryIO) -> None:
    """As EvalPlus does, but for the comparison and the clock, which are the judge's."""
    os.chdir(tempfile.mkdtemp())
    reliability_guard(maximum_memory_bytes=query_maximum_memory_bytes())
    for name in [name for name in sys.modules if name.partition(".")[0] == "evalplus"]:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType]  # its oracles know a few answers
    namespace: dict[str, Any] = {}
    try:
        with swallow_io():
            exec(code, namespace)  # noqa: S102
            function = namespace[entry_point]
        _send(reply, READY)
        for arguments in inputs:
            with swallow_io():
                result = function(*arguments)
            _send(reply, RETURNED)  # the clock stops here
            try:
                plain.write(result, reply)
                reply.flush()
            except BaseException:
                os._exit(1)  # a value that breaks off says that it cannot be written
    except BaseException:
        _send(reply, RAISED)


def _send(reply: BinaryIO, word: bytes) -> None:
    reply.write(word)
    reply.flush()


# -- the judge's place ------------------------------------------------------------------------------------------------------


def judge(dataset: str, data: int, place: tuple[int, int], limits: Limits, talk: Talk, answer: BinaryIO) -> None:
    """What runs in the judge's place. The problem is read there, from `place` (offset, length) of the open file `data`."""
    os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = str(limits.memory)
    problem = json.loads(os.pread(data, place[1], place[0]))
    if dataset == "mbpp":
        for part in ("base_input", "plus_input"):
            problem[part] = mbpp_deserialize_inputs(problem["task_id"], problem[part])
    with os.fdopen(talk.asking, "wb") as asking:
        verdicts = _Judge(dataset, problem, asking, talk).verdicts()
    answer.write(json.dumps(verdicts).encode() + b"\n")


class _Judge:
    def __init__(self, dataset: str, problem: dict[str, Any], asking: BinaryIO, talk: Talk) -> None:
        self.dataset, self.problem, self.asking, self.talk = dataset, problem, asking, talk

    def verdicts(self) -> dict[str, str]:
        """By part. A program that cheated in one has cheated."""
        self._ask(self.problem["entry_point"])
        tests = self._tests("base")
        if not self._program_there():
            return {"base": "fail", "plus": "fail"}
        found: dict[str, str] = {}
        for number, part in ((BASE, "base"), (PLUS, "plus")):
            tests = tests if number == BASE else self._tests(part)
            checked = self._compared(number, tests)
            if self._cheated(checked, tests):
                return {"base": "cheated", "plus": "cheated"}
            found[part] = checked.verdict
        return found

    def _tests(self, part: str) -> Tests:
        """With the reference's results, found now: the time limits follow from how long it takes at this machine's load."""
        name, inputs = self.problem["entry_point"], self.problem[f"{part}_input"]
        reference = self.problem["prompt"] + self.problem["canonical_solution"]
        not_none = self.dataset == "mbpp" and name in MBPP_OUTPUT_NOT_NONE_TASKS
        expected, seconds = trusted_exec(reference, inputs, name, record_time=True, output_not_none=not_none)
        assert isinstance(expected, list) and isinstance(seconds, list)  # since record_time is asked for
        return Tests(self.dataset, name, inputs, expected, seconds, self.problem["atol"])

    def _program_there(self) -> bool:
        reply = self.talk.reading[BASE]
        return bool(select.select([reply], [], [], 2 * SANITISE_SECONDS)[0]) and os.read(reply, 1) == READY

    def _compared(self, part: int, tests: Tests) -> Checked:
        self._ask((part, tests.inputs))
        _REPLIES[:] = [os.fdopen(self.talk.reading[part], "rb")]
        return check(tests, f"from {__name__} import connected\n{tests.entry_point} = connected()")

    def _cheated(self, checked: Checked, tests: Tests) -> bool:
        """Whether it forged a reply, or has EvalPlus, where both run in one process, take a word for the right result."""
        if checked.remark == _FORGED:
            return True
        if checked.verdict == PASS or checked.remark == _SLOW or not checked.in_time:
            return False
        word = f"decoy-{uuid.uuid4().hex}"
        decoy = replace(tests, expected=[word] * len(tests.inputs))
        self._ask((DECOY, (self._bait(word), decoy)))
        return os.read(self.talk.reading[DECOY], 1) == CHEATED

    def _bait(self, word: str) -> dict[str, Any]:
        """The problem with a solution that returns the word."""
        name, body = self.problem["entry_point"], f"    return {word!r}\n"
        solution = body if self.dataset == "humaneval" else f"\ndef {name}(*arguments):\n{body}"
        return {**self.problem, "canonical_solution": solution}

    def _ask(self, what: Any) -> None:
        with suppress(BrokenPipeError):  # its place is gone: what is read from there says so
            pickle.dump(what, self.asking)
            self.asking.flush()


# -- within the check there: the function that stands in for the program's --------------------------------------------------

_REPLIES: list[BinaryIO] = []


def connected() -> Callable[..., Any]:
    """The function, once the program's place has the program's."""
    said = _said()
    if said == READY:
        return _remote
    if said != RAISED:
        _REMARK[0].value = _FORGED
    raise RuntimeError("the program could not be defined")


def _remote(*_: Any) -> Any:
    """The next result from the program's place: both sides go through the same inputs."""
    try:
        said = _said()
        signal.setitimer(signal.ITIMER_REAL, 0)  # the program is done; to bring a large result here is our own time
    except TimeoutException:
        _REMARK[0].value = _SLOW
        raise
    if said == RAISED:
        raise RuntimeError("the program raised an error")
    try:
        if said != RETURNED:
            raise plain.Forged(said)
        return plain.read(_REPLIES[0])
    except plain.Forged:
        _REMARK[0].value = _FORGED
        raise


def _said() -> bytes:
    said = _REPLIES[0].read(1)
    if not said:  # the program's process left; EvalPlus calls that a timeout
        os._exit(1)
    return said
