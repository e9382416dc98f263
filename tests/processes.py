"""Commands and scripts in processes of their own, forked from this one, so that they need not import everything again."""

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import torch


@dataclass
class Child:
    """A process that runs `loopcd ARGUMENTS`; its ends of the pipes are ours to read."""

    pid: int
    stdout: IO[bytes]
    stderr: IO[bytes]
    status: int | None = None

    def running(self) -> bool:
        if self.status is None:
            pid, found = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(found) if pid else None
        return self.status is None

    def signal(self, number: int) -> None:
        if self.running():
            os.kill(self.pid, number)

    def wait(self) -> int:
        """The status, negative where a signal ended it."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status


@contextmanager
def forked(arguments: Sequence[Any]) -> Iterator[Child]:
    """The command line with these arguments and no input; whatever happens, it is over in the end."""
    ours_out, its_out = os.pipe()
    ours_err, its_err = os.pipe()
    pid = os.fork()
    if pid == 0:
        for number, end in enumerate((os.open(os.devnull, os.O_RDONLY), its_out, its_err)):
            os.dup2(end, number)
        _be(["loopcd", *map(str, arguments)], _command)
    os.close(its_out)
    os.close(its_err)
    with os.fdopen(ours_out, "rb") as stdout, os.fdopen(ours_err, "rb") as stderr:
        child = Child(pid, stdout, stderr)
        try:
            yield child
        finally:
            child.signal(signal.SIGKILL)
            child.wait()


class ForkedScript:
    """What `subprocess.Popen([python, script, …], stdin=PIPE, stdout=PIPE, text=True)` is, whatever else it is given."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        its_in, ours_in = os.pipe()
        ours_out, its_out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(its_in, 0)
            os.dup2(its_out, 1)
            _be(list(command[1:]), lambda: runpy.run_path(command[1], run_name="__main__"))
        os.close(its_in)
        os.close(its_out)
        self.stdin, self.stdout = os.fdopen(ours_in, "w"), os.fdopen(ours_out)

    def wait(self) -> int:
        self.stdout.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def printed(code: str, *arguments: str) -> str:
    """What `python -c CODE ARGUMENTS` prints."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(its, 1)
        _be(["-c", *arguments], lambda: exec(code, {"__name__": "__main__"}))
    os.close(its)
    with os.fdopen(ours) as stdout:
        told = stdout.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return told


def _command() -> None:
    from loopcd.cli import main

    main()


def _be(arguments: list[str], work: Callable[[], Any]) -> NoReturn:
    """Be that program: streams as a fresh interpreter has them, Python's own handling of interrupts, its exit status."""
    status = 1
    try:
        os.closerange(3, 256)  # pipes of other processes, which would otherwise stay open
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may have been started with interrupts ignored
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tokenizers warns of forks otherwise
        torch.set_num_threads(1)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = arguments
        try:
            work()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
        try:
            sys.stdout.flush()
        except OSError:  # an interpreter that ends says so too, and has this status
            traceback.print_exc()
            status = 120
        sys.stderr.flush()
    finally:
        os._exit(status)
