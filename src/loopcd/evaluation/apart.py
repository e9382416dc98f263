"""Work on what a model wrote that may take any time or memory: in a copy of this process, which can be ended."""

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

GIBIBYTE = 1 << 30


def apart(work: Callable[[], Any], seconds: float, memory: int = 4 * GIBIBYTE) -> Any:
    """What `work` gives, which JSON can hold; None where it took longer, more bytes than these, or ended its process.

    What it raises is raised as a RuntimeError. The copy has one thread, the calling one: work that sets alarms, as
    math-verify does, may be asked for from any.
    """
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, memory, tell)
    os.close(tell)
    try:
        said = _read(told, time.monotonic() + seconds)
    finally:
        os.close(told)
        os.kill(child, signal.SIGKILL)  # it has said all, or too late
        os.waitpid(child, 0)
    if not said:
        return None
    made = json.loads(said)
    if "error" in made:
        raise RuntimeError(made["error"])
    return made["made"]


def _answer(work: Callable[[], Any], memory: int, tell: int) -> None:
    """In the copy, which ends here: nothing that this process has open is closed or written once more."""
    try:
        _limit(memory)
        try:
            said = {"made": work()}
        except MemoryError:
            return
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        line = json.dumps(said).encode() + b"\n"
        while line:
            line = line[os.write(tell, line) :]
    finally:
        os._exit(0)


def _limit(memory: int) -> None:
    """Let this process take so many bytes beside what it has, where the system knows limits."""
    with suppress(OSError, ValueError):
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = held + memory if hard == resource.RLIM_INFINITY else min(held + memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _read(told: int, until: float) -> bytes:
    """The line that comes; nothing where it comes later than `until`, or its writer ends first."""
    said = b""
    while not said.endswith(b"\n"):  # other copies, made meanwhile, may have the pipe open too: its end tells nothing
        if not select.select([told], [], [], max(0.0, until - time.monotonic()))[0]:
            return b""
        more = os.read(told, 1 << 16)
        if not more:
            return b""
        said += more
    return said
