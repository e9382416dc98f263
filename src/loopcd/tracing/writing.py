"""Files written whole, and never through a link: the one place where files are opened for writing.

A folder that somebody else made may hold links, pipes or devices under the names that we are about to write to or to go on
with. A link is not followed and nothing but a plain file is opened, so that such a folder reaches no other file of the user.
A folder that the user names may itself be a link, or lie behind one: that is the user's own choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL, ELOOP
from pathlib import Path
from shutil import rmtree
from stat import S_ISDIR, S_ISLNK, S_ISREG
from tempfile import mkdtemp
from typing import BinaryIO

_LINK = "a symbolic link, which is never followed"


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """A whole file, or none of it; the file that stood there before is replaced."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A new file to write to, which takes the place of `path` when it is finished and on disk."""
    target = Path(path)
    _check_plain(target)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # left behind by a kill, or a link: itself, never what it points to
        file = os.fdopen(open_plain(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")
    except OSError as error:  # nobody asked for the partial file
        raise OSError(error.errno, error.strerror, str(target)) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


@contextmanager
def filling(folder: Path, inside: Path | None = None) -> Iterator[Path]:
    """An empty folder for a library that writes files by itself; then they take their places in `folder`, one by one."""
    target = own_folder(folder, inside or folder)
    made = Path(mkdtemp(prefix=".", suffix=".partial", dir=target))
    try:
        yield made
        for file in sorted(made.iterdir()):
            _check_plain(target / file.name)
            file.replace(target / file.name)
    finally:
        rmtree(made, ignore_errors=True)


def open_plain(path: str | Path, flags: int) -> int:
    """A descriptor of a plain file: of no link's target, no folder, no pipe, no device."""
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == ELOOP:
            raise OSError(ELOOP, _LINK, str(path)) from error
        raise
    if S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise OSError(EINVAL, "not a plain file", str(path))


def read_plain(path: str | Path) -> bytes:
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read()


def append(path: str | Path, content: bytes) -> None:
    """Add to the end of a file, made if need be, and wait until that is on disk."""
    with os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def cut(path: str | Path, length: int) -> None:
    """Shorten a file."""
    with os.fdopen(open_plain(path, os.O_WRONLY), "wb") as file:  # of a descriptor: nothing is cut but what is asked for
        file.truncate(length)


def own_folder(path: Path, inside: Path) -> Path:
    """A folder below `inside`, made if need be; no folder on the way down may be a link."""
    inside.mkdir(parents=True, exist_ok=True)
    place = inside
    for name in path.relative_to(inside).parts:
        place = place / name
        place.mkdir(exist_ok=True)
        if not S_ISDIR(place.lstat().st_mode):
            raise OSError(ELOOP, _LINK, str(place))
    return path


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _check_plain(path: Path) -> None:
    """What is there may be replaced: it is a plain file, or nothing."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if S_ISLNK(mode):
        raise OSError(ELOOP, _LINK, str(path))
    if not S_ISREG(mode):
        raise OSError(EINVAL, "not a plain file", str(path))
