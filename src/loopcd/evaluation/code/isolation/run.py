"""Run a function shut in, and watch it: `run(program, level, limits)`; or several, each in a place of its own.

Two processes stand between us and a program. The middle one is outside with us and clears up; its child is inside and calls
the program, which as a rule starts a process of its own for the worst part. We read what the child writes and count.
"""

import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn

from . import kernel
from .levels import LEVELS, Limited, Place
from .limits import Limits, descendants, first_to_die, memory_of
from .scratch import disk_of, make, remove

Program = Callable[[BinaryIO], None]  # it writes its answer into the file that it is given
ProgramJob = tuple[Program, tuple[int, ...]]  # with those of our open files that it keeps, pipes to another for instance
# "left files": what it wrote could not be cleared away
Ended = Literal["finished", "time", "memory", "output", "disk", "left files"]
_LOOK_EVERY = 0.05  # seconds
_CLEAR_WITHIN = 20.0  # seconds


class Unavailable(Exception):
    """The system does not allow this level."""


@dataclass(frozen=True)
class ProgramEnd:
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


def run(program: Program, level: Limited, limits: Limits) -> ProgramEnd:
    """Call the program in a process shut in by `level`. Call this where there is one thread only: it forks."""
    return run_together([(program, ())], level, limits)[0]


def run_together(jobs: Sequence[ProgramJob], level: Limited, limits: Limits) -> list[ProgramEnd]:
    """Several at once, each in a place and with limits of its own, until the first ends: the others are ended then.

    The files that jobs keep are closed here once all were started: who reads from a pipe learns that the other side is gone.
    """
    running: list[_Running] = []
    try:
        for job in jobs:
            running.append(_Running(job, level, limits))  # those that were started must be ended
        for file in {file for _, kept in jobs for file in kept}:
            os.close(file)
        _watch(running, limits)
    finally:
        for each in running:
            each.end()
    return [each.outcome() for each in running]


# -- outside, in the middle -----------------------------------------------------------------------------------------------


def _middle(job: ProgramJob, level: Limited, limits: Limits, scratch: str, answer: int, control: int) -> NoReturn:
    program, kept = job
    try:
        os.setsid()
        kernel.die_with_parent()
        _close_all_but(answer, control, *kept)
        first_to_die()
        place = level.leave(scratch)
        inside = os.fork()
        if inside == 0:
            _inside(program, level, limits, place, answer, control)
        for file in (answer, *kept):
            os.close(file)
        os.write(control, b"inside %d\n" % inside)
        status = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
        level.clear(place)
        os.write(control, b"ended %d\n" % status)
    except BaseException as error:
        os.write(control, _failed(error))
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


def _failed(error: BaseException) -> bytes:
    said = " ".join(str(error).split()) or type(error).__name__
    return f"failed {said[:500]}\n".encode()


# -- inside -----------------------------------------------------------------------------------------------------------------


def _inside(program: Program, level: Limited, limits: Limits, place: Place, answer: int, control: int) -> NoReturn:
    try:
        level.shut(place, limits)
        os.environ.clear()
        os.environ.update(PATH="/usr/bin:/bin", HOME=place.scratch, TMPDIR=place.scratch, LANG="C.UTF-8")
        tempfile.tempdir = place.scratch
    except BaseException as error:
        os.write(control, _failed(error))
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


def _watch(running: Sequence["_Running"], limits: Limits) -> None:
    """Until the first has ended, and the others have been made to."""
    started = time.monotonic()
    latest = started + limits.seconds + _CLEAR_WITHIN  # then the middle process is at a loss
    with selectors.DefaultSelector() as selector:
        for each in running:
            for source in (each.answer, each.control):
                os.set_blocking(source, False)
                selector.register(source, selectors.EVENT_READ, each)
        while not all(each.over for each in running) and time.monotonic() < latest:
            for key, _ in selector.select(_LOOK_EVERY):
                if not key.data.read(key.fd):
                    selector.unregister(key.fd)
            for each in running:
                if running[0].over and not each.over:
                    each.stop(each.ended)
                elif not each.over and each.ended == "finished":
                    each.judge(time.monotonic() - started)
    for each in running:
        while each.read(each.answer):  # what came just before the end
            pass


class _Running:
    """A job at work: what it wrote so far, and whether it passed a limit."""

    def __init__(self, job: ProgramJob, level: Limited, limits: Limits) -> None:
        self.limits, self.scratch = limits, "" if level.own_files else make()
        self.output, self.said = bytearray(), bytearray()
        self.ended: Ended = "finished"
        (self.answer, answer), (self.control, control) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.middle = os.fork()
        if self.middle == 0:
            _middle(job, level, limits, self.scratch, answer, control)
        os.close(answer)
        os.close(control)
        self.started, self.over, self.seconds = time.monotonic(), False, 0.0

    def read(self, source: int) -> bool:
        """Take a piece; whether there was one."""
        into = self.output if source == self.answer else self.said
        try:
            piece = os.read(source, 1 << 16)
        except BlockingIOError:
            return False
        if len(into) <= self.limits.output:
            into += piece
        if source == self.control and (not piece or self._told("ended") or self._told("failed")):
            self.over, self.seconds = True, time.monotonic() - self.started
        return bool(piece)

    def judge(self, seconds: float) -> None:
        processes = descendants(self.middle)
        if seconds > self.limits.seconds:
            self.stop("time")
        elif len(self.output) > self.limits.output:
            self.stop("output")
        elif memory_of(processes) > self.limits.memory:
            self.stop("memory")
        elif self.scratch and disk_of(self.scratch, processes, self.limits.disk) > self.limits.disk:
            self.stop("disk")

    def stop(self, reason: Ended) -> None:
        inside = self._told("inside")
        if inside is not None:
            self.ended = reason
            with suppress(ProcessLookupError):
                os.kill(int(inside), signal.SIGKILL)

    def end(self) -> None:
        os.kill(self.middle, signal.SIGKILL)  # it is our child and not waited for yet, so the number is still its own
        os.waitpid(self.middle, 0)
        os.close(self.answer)
        os.close(self.control)
        if self.scratch:
            try:
                remove(Path(self.scratch).parent)
            except Exception:  # whatever a program built there: it is its own verdict, not the end of the grading
                self.ended = "left files"

    def outcome(self) -> ProgramEnd:
        failed, status = self._told("failed"), self._told("ended")
        if failed is not None:
            raise Unavailable(failed)
        output = bytes(self.output[: self.limits.output])
        return ProgramEnd(self.ended, None if status is None else int(status), output, self.seconds)

    def _told(self, what: str) -> str | None:
        """What the processes on the other side said under this heading, if they did."""
        for line in self.said.decode(errors="replace").splitlines(keepends=True):
            heading, _, rest = line.partition(" ")
            if heading == what and line.endswith("\n"):
                return rest.strip()
        return None
