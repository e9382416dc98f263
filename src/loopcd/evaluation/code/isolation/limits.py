"""How much of the machine a program may use."""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import kernel

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """`memory` and `disk` hold for each process or file, and for all of them together."""

    seconds: float = 300.0
    memory: int = 4096 * MEBIBYTE
    processes: int = 32
    disk: int = 64 * MEBIBYTE
    output: int = MEBIBYTE
    open_files: int = 256

    def describe(self) -> str:
        return (
            f"{self.seconds:g} s, {self.memory // MEBIBYTE} MiB memory, {self.processes} processes, "
            f"{self.disk // MEBIBYTE} MiB files, {self.output // 1024} KiB output"
        )

    def impose(self, processes_already: int) -> None:
        """On this process and all that it starts. `processes_already`: those of this user that are none of the program's."""
        wanted = {
            resource.RLIMIT_CPU: int(self.seconds) + 1,
            resource.RLIMIT_AS: self.memory,
            resource.RLIMIT_NPROC: self.processes + processes_already,
            resource.RLIMIT_FSIZE: self.disk,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_CORE: 0,
        }
        for kind, value in wanted.items():
            hard = resource.getrlimit(kind)[1]
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (allowed, allowed))


def first_to_die() -> None:
    """Should the machine run out of memory, this process and all that it starts go first."""
    with kernel.open_to_others(), suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def processes_of(user: int) -> int:
    """Threads that run as this user, as the kernel counts them against the limit."""
    # The folder itself says root where the process is closed to others.
    own = [folder for folder in _listed(Path("/proc")) if f"\nUid:\t{user}\t" in _text(folder / "status")]
    return sum(len(_listed(folder / "task")) for folder in own)


def descendants(process: int) -> list[int]:
    """All that this process started, and what those started."""
    found, todo = [], [process]
    while todo:
        for task in _listed(Path(f"/proc/{todo.pop()}/task")):
            children = [int(number) for number in _text(task / "children").split()]
            found += children
            todo += children
    return found


def memory_of(processes: list[int]) -> int:
    """Bytes that they hold in memory."""
    pages = sum(int(number) for process in processes for number in _text(Path(f"/proc/{process}/statm")).split()[1:2])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):  # of processes that are gone, or that we may not look at
        return [entry for entry in folder.iterdir() if entry.name.isdigit()]
    return []


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")  # a process names itself as it likes
    return ""
