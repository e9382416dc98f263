"""Run a function shut in, and watch it: `run(program, level, limits)`.

Two processes stand between us and the program. The middle one is outside with us and clears up; its child is inside and calls
the program, which as a rule starts a process of its own for the worst part. We read what the child writes and count.
"""

import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal, NoReturn

from . import kernel
from .levels import LEVELS, Limited, Place
from .limits import Limits, descendants, first_to_die, memory_of

Program = Callable[[BinaryIO], None]  # it writes its answer into the file that it is given
Ended = Literal["finished", "time", "memory", "output"]
_LOOK_EVERY = 0.05  # seconds


class Unavailable(Exception):
    """The system does not allow this level."""


@dataclass(frozen=True)
class Outcome:
    """What became of a program: how it ended, its exit status (negative: the signal), and what it wrote."""

    ended: Ended
    status: int | None
    output: bytes
    seconds: float


def strongest(wanted: str | None = None) -> tuple[Limited, list[str]]:
    """The strongest level that works here (or the one of this name), and why those above it do not."""
    refused = []
    for level in LEVELS:
        if wanted not in (None, level.name):
            continue
        try:
            outcome = run(_trial, level, Limits(seconds=20))
        except Unavailable as error:
            refused.append(f"{level.name}: {error}")
            continue
        if outcome.status == 0:
            return level, refused
        refused.append(f"{level.name}: {outcome.output.decode(errors='replace') or outcome}")
    raise Unavailable("; ".join(refused) or f"there is no isolation level {wanted!r}")


def _trial(answer: BinaryIO) -> None:
    """Whether a program that is shut in can still import, and has a place to write."""
    try:
        os.listdir(os.path.dirname(os.__file__))  # noqa: PTH120, PTH208
        tempfile.TemporaryFile().close()
    except OSError as error:
        answer.write(f"the program could not read Python's libraries or write a temporary file ({error})".encode())
        raise


def run(program: Program, level: Limited, limits: Limits) -> Outcome:
    """Call the program in a process shut in by `level`. Call this where there is one thread only: it forks."""
    scratch = "" if level.own_files else tempfile.mkdtemp(prefix="loopcd-code-")
    answer, control = os.pipe(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if middle == 0:
        os.close(answer[0])
        os.close(control[0])
        _middle(program, level, limits, scratch, answer[1], control[1])
    os.close(answer[1])
    os.close(control[1])
    try:
        return _Watch(middle, answer[0], control[0], limits).outcome()
    finally:
        _end(middle)
        os.close(answer[0])
        os.close(control[0])
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _end(middle: int) -> None:
    os.kill(middle, signal.SIGKILL)  # it is our child and not waited for yet, so the number is still its own
    os.waitpid(middle, 0)


# -- outside, in the middle -----------------------------------------------------------------------------------------------


def _middle(program: Program, level: Limited, limits: Limits, scratch: str, answer: int, control: int) -> NoReturn:
    try:
        os.setsid()
        kernel.die_with_parent()
        _close_all_but(answer, control)
        first_to_die()
        place = level.leave(scratch)
        inside = os.fork()
        if inside == 0:
            _inside(program, level, limits, place, answer, control)
        os.close(answer)
        os.write(control, b"inside %d\n" % inside)
        status = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
        level.clear(place)
        os.write(control, b"ended %d\n" % status)
    except BaseException as error:
        os.write(control, b"failed " + _one_line(error))
    os._exit(0)


def _close_all_but(*kept: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    low = 3
    for keep in sorted(kept):
        os.closerange(low, keep)
        low = keep + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _one_line(error: BaseException) -> bytes:
    return (" ".join(str(error).split()) or type(error).__name__)[:500].encode() + b"\n"


# -- inside -----------------------------------------------------------------------------------------------------------------


def _inside(program: Program, level: Limited, limits: Limits, place: Place, answer: int, control: int) -> NoReturn:
    try:
        level.shut(place, limits)
        os.environ.clear()
        os.environ.update(PATH="/usr/bin:/bin", HOME=place.scratch, TMPDIR=place.scratch, LANG="C.UTF-8")
        tempfile.tempdir = place.scratch
        os.write(control, b"ready\n")
    except BaseException as error:
        os.write(control, b"failed " + _one_line(error))
        os._exit(1)
    os.close(control)
    os.register_at_fork(after_in_child=lambda: _started(answer))
    try:
        with os.fdopen(answer, "wb") as file:
            program(file)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)


def _started(answer: int) -> None:
    """What the program starts cannot answer in its place, and does not outlive us unless it takes pains to."""
    with suppress(OSError):
        os.close(answer)
    kernel.die_with_parent()


# -- outside, watching --------------------------------------------------------------------------------------------------


class _Watch:
    """Reads what the program writes until it ends or passes a limit."""

    def __init__(self, middle: int, answer: int, control: int, limits: Limits) -> None:
        self.middle, self.answer, self.control, self.limits = middle, answer, control, limits
        self.output, self.said = bytearray(), bytearray()
        self.ended: Ended = "finished"
        self.selector = selectors.DefaultSelector()
        for source in (answer, control):
            os.set_blocking(source, False)
            self.selector.register(source, selectors.EVENT_READ)

    def outcome(self) -> Outcome:
        started = time.monotonic()
        with self.selector:
            while self._told("ended") is None and self._told("failed") is None:
                if self.control not in self.selector.get_map():
                    break  # the middle process is gone
                self._read(_LOOK_EVERY)
                if self.ended == "finished":
                    self._judge(time.monotonic() - started)
            self._read(0)
        failed = self._told("failed")
        if failed is not None:
            raise Unavailable(failed)
        status = self._told("ended")
        output = bytes(self.output[: self.limits.output])
        return Outcome(self.ended, None if status is None else int(status), output, time.monotonic() - started)

    def _read(self, timeout: float) -> None:
        for key, _ in self.selector.select(timeout):
            into = self.output if key.fd == self.answer else self.said
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                self.selector.unregister(key.fd)
            elif len(into) <= self.limits.output:
                into += piece

    def _judge(self, seconds: float) -> None:
        if seconds > self.limits.seconds:
            self._stop("time")
        elif len(self.output) > self.limits.output:
            self._stop("output")
        elif memory_of(descendants(self.middle)) > self.limits.memory:
            self._stop("memory")

    def _stop(self, reason: Ended) -> None:
        inside = self._told("inside")
        if inside is not None:
            self.ended = reason
            os.kill(int(inside), signal.SIGKILL)

    def _told(self, what: str) -> str | None:
        """What the processes on the other side said under this heading, if they did."""
        for line in self.said.decode(errors="replace").splitlines(keepends=True):
            heading, _, rest = line.partition(" ")
            if heading == what and line.endswith("\n"):
                return rest.strip()
        return None
