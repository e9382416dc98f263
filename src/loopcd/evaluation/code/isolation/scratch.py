"""A program's temporary folder where there is no mount for it: how it is made, how much is in it, how it goes away."""

import os
import stat
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

_ENTRIES = 8192  # as many as the mount has room for
_BLOCK = 512  # bytes, whatever the file system's own are
_LONGEST = 3000  # characters of a path; the kernel takes 4096


def make() -> str:
    """A folder in one that is ours, so that whoever owns it cannot move it and put something else there."""
    outer = Path(tempfile.mkdtemp(prefix="loopcd-code-"))
    outer.chmod(0o711)
    (outer / "scratch").mkdir(mode=0o700)
    return str(outer / "scratch")


def disk_of(folder: str, processes: list[int], most: int) -> int:
    """Bytes on disk in it, and in open files that were taken out of it; what cannot be counted is taken for too much."""
    total = entries = 0
    todo = [folder]
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as found:
            for entry in found:
                entries += 1
                total += _size(entry.path)
                if entries > _ENTRIES or total > most or len(entry.path) > _LONGEST:
                    return most + 1
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
    return total + sum(_size_without_name(process) for process in processes)


def _size(path: str) -> int:
    with suppress(OSError):
        return os.lstat(path).st_blocks * _BLOCK
    return 0


def _size_without_name(process: int) -> int:
    """Of the open files that no folder holds any more."""
    total = 0
    with suppress(OSError), os.scandir(f"/proc/{process}/fd") as found:
        for entry in found:
            with suppress(OSError):
                about = os.stat(entry.path)  # noqa: PTH116
                if stat.S_ISREG(about.st_mode) and about.st_nlink == 0:
                    total += about.st_blocks * _BLOCK
    return total


def remove(top: Path) -> None:
    """All of it, however deep: folders are moved to the top one by one, so that no path grows long and nothing recurses.

    Call it when no process of the program is left.
    """
    if top.is_symlink():
        raise NotADirectoryError(top)
    waiting = [top]
    while waiting:
        current = waiting.pop()
        current.chmod(0o700)
        with os.scandir(current) as found:
            entries = list(found)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                Path(entry.path).chmod(0o700)  # a folder that is moved must be writable
                waiting.append(Path(entry.path).rename(top / uuid.uuid4().hex))
            else:
                Path(entry.path).unlink()
        if current != top:
            current.rmdir()
    top.rmdir()
