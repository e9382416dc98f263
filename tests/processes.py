"""The command line in a process of its own, forked from this one, so that it need not import everything again."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
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
        _run(list(map(str, arguments)))
    os.close(its_out)
    os.close(its_err)
    with os.fdopen(ours_out, "rb") as stdout, os.fdopen(ours_err, "rb") as stderr:
        child = Child(pid, stdout, stderr)
        try:
            yield child
        finally:
            child.signal(signal.SIGKILL)
            child.wait()


def _run(arguments: list[str]) -> NoReturn:
    """Be the command: streams as a fresh interpreter has them, Python's own handling of interrupts, its exit status."""
    status = 1
    try:
        os.closerange(3, 256)  # pipes of other processes, which would otherwise stay open
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may have been started with interrupts ignored
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tokenizers warns of forks otherwise
        torch.set_num_threads(1)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["loopcd", *arguments]
        from loopcd.cli import main

        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
