"""A run's folder: the manifest, the finished items, the timings. It survives a kill at any moment.

    manifest.json      what is run; written first, never changed
    samples/RUN.jsonl  one line for each finished item, in the order of the batches
    timing.jsonl       one line for each batch: kept apart, so that samples and tables of two runs can be equal byte for byte
    grades/RUN.json    right and wrong, with the hash of the samples that were graded
    results.*          the tables
    .lock              held while a process works here

A batch's lines are appended and synced when it is finished. A torn last line is cut off on opening; its batch is then made
again as a whole (an item's last bits may depend on its batch) and only the missing lines are added.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from loopcd.decoding import Generation

MANIFEST = "manifest.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


class StoreError(OSError):
    """The folder cannot be used as it is; the message says what to do."""


class Store:
    """A folder that is locked for this process; made by `open_store`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def manifest(self) -> dict[str, Any] | None:
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text())
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise StoreError(f"{path} is damaged ({error}): use another folder") from error

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        self.write(MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")

    def write(self, name: str, text: str) -> Path:
        return write_whole(self.folder / name, text)

    def samples(self, run: str) -> dict[str, dict[str, Any]]:
        """The finished items of a run by id, in their order in the file; a torn last line is cut off."""
        path = self.folder / "samples" / f"{run}.jsonl"
        found: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(_whole_lines(path), start=1):
            if line["id"] in found:
                raise StoreError(f"{path}, line {number}: {line['id']} stands there twice; use another folder")
            found[line["id"]] = line
        return found

    def add_samples(self, run: str, lines: Sequence[dict[str, Any]]) -> None:
        self._append(self.folder / "samples" / f"{run}.jsonl", lines)

    def timings(self) -> list[dict[str, Any]]:
        return _whole_lines(self.folder / "timing.jsonl")

    def add_timing(self, line: dict[str, Any]) -> None:
        self._append(self.folder / "timing.jsonl", [line])

    def samples_hash(self, run: str) -> str:
        return sha256((self.folder / "samples" / f"{run}.jsonl").read_bytes()).hexdigest()

    def grades(self, run: str) -> list[dict[str, bool]] | None:
        """The grades of the samples as they are now, or None if these were not graded yet."""
        path = self.folder / "grades" / f"{run}.json"
        if not path.exists():
            return None
        stored = json.loads(path.read_text())
        return stored["grades"] if stored["samples_sha256"] == self.samples_hash(run) else None

    def write_grades(self, run: str, grades: Sequence[dict[str, bool]]) -> None:
        self.write(f"grades/{run}.json", json.dumps({"samples_sha256": self.samples_hash(run), "grades": list(grades)}))

    def _append(self, path: Path, lines: Iterable[dict[str, Any]]) -> None:
        with _explained(path):
            new = not path.exists()
            path.parent.mkdir(exist_ok=True)
            with path.open("ab", buffering=0) as file:
                for line in lines:
                    _write_all(file.fileno(), (json.dumps(line, ensure_ascii=False) + "\n").encode())
                os.fsync(file.fileno())
            if new:
                _sync_folder(path.parent)


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """Lock a folder, made if need be, for this process alone."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _check_ours(folder)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise StoreError(
                f"another run (process {owner}) is at work in {folder}: wait for it, or use another --out"
            ) from None
        with _explained(folder):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield Store(folder)
    finally:
        os.close(lock)


def write_whole(path: Path, text: str) -> Path:
    """A whole file, or none of it."""
    with _explained(path):
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    return path


def sample_line(item: str, made: Generation) -> dict[str, Any]:
    return {
        "id": item,
        "text": made.text,
        "token_ids": list(made.token_ids),
        "finish_reason": made.finish_reason,
        "loops": sum(made.loops),
        "contested": made.contested,
        "touched": made.touched,
    }


def _check_ours(folder: Path) -> None:
    """Nothing is written among files that are not a run's."""
    inside = [path.name for path in folder.iterdir() if path.name != ".lock" and not path.name.endswith(".partial")]
    if inside and MANIFEST not in inside:
        raise StoreError(f"{folder} is not empty and holds no run of loopcd ({inside[0]}, …): use another --out")


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):  # a kill or a full disk tore the last line
        with _explained(path):
            os.truncate(path, whole)
    lines = []
    for number, line in enumerate(raw[:whole].splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise StoreError(f"{path}, line {number} is damaged ({error}): use another folder") from error
    return lines


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of the file system in words."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            advice = "the finished items are kept: make room and run the same command again"
        elif error.errno in _READ_ONLY:
            advice = "nothing can be written there: choose another folder by --out, or change its permissions"
        else:
            advice = "choose another folder by --out"
        raise StoreError(f"{path}: {reason}; {advice}") from error
