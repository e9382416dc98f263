"""The program's place: it holds the program and what to call it with, and nothing that tells the right results.

The process that enters it makes the text a program, and starts another for each set of tests, where the program runs and its
results are written as plain data. Nothing is compared here; the judge, in a place of its own, does that.
"""

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

from evalplus.eval import PASS, query_maximum_memory_bytes  # pyright: ignore[reportMissingImports]
from evalplus.eval.utils import reliability_guard, swallow_io, time_limit  # pyright: ignore[reportMissingImports]
from evalplus.sanitize import sanitize  # pyright: ignore[reportMissingImports]

from . import plain
from .checking import check
from .limits import Limits
from .talk import BASE, CHEATED, DECOY, HONEST, RAISED, READY, RETURNED, Talk

SANITISE_SECONDS = 60.0


def contest(text: str, before: str, limits: Limits, talk: Talk) -> Callable[[BinaryIO], None]:
    """What runs in the program's place. The program is what EvalPlus finds in the text; if nothing, with `before` before it."""

    def inside(_: BinaryIO) -> None:
        os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = str(limits.memory)
        with os.fdopen(talk.asked, "rb") as asked:
            entry_point = _next(asked)
            try:
                code = _sanitised(text, before, entry_point)
            except BaseException:
                os.write(talk.replying[BASE], RAISED)
                return
            os.write(talk.replying[BASE], READY)
            _serve(asked, code, entry_point, talk)

    return inside


def _next(asked: BinaryIO) -> Any:
    return pickle.load(asked)  # noqa: S301  # from the judge, into a place where nothing can be lost


def _sanitised(text: str, before: str, entry_point: str) -> str:
    with time_limit(SANITISE_SECONDS):
        return sanitize(text, entry_point).strip() or sanitize(before + text, entry_point)


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
        for number, reply in enumerate(talk.replying):
            if number > part:
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
        reply.write(READY)
        reply.flush()
        for arguments in inputs:
            with swallow_io():
                result = function(*arguments)
            reply.write(RETURNED)
            reply.flush()  # the clock stops here
            _send(result, reply)
    except BaseException:
        reply.write(RAISED)
        reply.flush()


def _send(result: Any, reply: BinaryIO) -> None:
    try:
        plain.write(result, reply)
        reply.flush()
    except BaseException:
        os._exit(1)  # a value that breaks off says that it cannot be written
