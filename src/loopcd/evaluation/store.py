"""A run's folder: the manifest, the finished items, the timings. It survives a kill at any moment.

    manifest.json      what is run; written first, never changed
    samples/RUN.jsonl  one line for each finished item, in the order of the batches
    timing.jsonl       one line for each batch: kept apart, so that samples and tables of two runs can be equal byte for byte
    grades/RUN.json    right and wrong, with the hash of the samples that were graded
    results.*          the tables
    .lock              held while a process works here

A batch's lines are appended and synced when it is finished. A torn last line is cut off on opening; its batch is then made
again as a whole (an item's last bits may depend on its batch) and only the missing lines are added.

The folder may come from somebody else: its files are read as data of a known shape, and no link in it is followed. What the
files say is believed: the hash ties grades to samples, it does not prove who wrote either.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from loopcd.decoding import Generation
from loopcd.evaluation.data import log
from loopcd.tracing import writing

MANIFEST = "manifest.json"
_FULL = "the finished items are kept: make room and run the same command again"
_READ_ONLY = "nothing can be written there: choose another folder by --out, or change its permissions"
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _READ_ONLY),
}


class StoreError(OSError):
    """The folder cannot be used as it is; the message says what to do."""


@dataclass(frozen=True)
class Store:
    """A folder that is locked for this process; made by `open_store`."""

    folder: Path

    def manifest(self) -> dict[str, Any] | None:
        raw = _read(self.folder / MANIFEST)
        return None if raw is None else _record(raw, str(self.folder / MANIFEST), {})

    def write(self, name: str, text: str) -> Path:
        with _explained(self.folder / name):
            return writing.write_whole(self._place(name), text)

    def samples(self, run: str) -> dict[str, dict[str, Any]]:
        """The finished items of a run by id, in their order in the file; a torn last line is cut off."""
        path = self.folder / "samples" / f"{run}.jsonl"
        found: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(_whole_lines(path, _SAMPLE), start=1):
            if line["id"] in found:
                raise StoreError(f"{path}, line {number}: {line['id']} stands there twice; use another folder")
            found[line["id"]] = line
        return found

    def add_samples(self, run: str, lines: Sequence[dict[str, Any]]) -> None:
        self._append(f"samples/{run}.jsonl", lines)

    def timings(self) -> list[dict[str, Any]]:
        return _whole_lines(self.folder / "timing.jsonl", _TIMING)

    def add_timing(self, line: dict[str, Any]) -> None:
        self._append("timing.jsonl", [line])

    def samples_hash(self, run: str) -> str:
        return sha256(_read(self.folder / "samples" / f"{run}.jsonl") or b"").hexdigest()

    def grades(self, run: str) -> list[dict[str, bool]] | None:
        """The grades of the samples as they are now, or None if these have no grades that can be used."""
        path = self.folder / "grades" / f"{run}.json"
        raw = _read(path)
        if raw is None:
            return None
        try:
            stored = json.loads(raw)
            grades = stored["grades"] if stored["samples_sha256"] == self.samples_hash(run) else None
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            log.warning("%s is damaged (%s): the samples are graded again", path, str(error) or type(error).__name__)
            return None
        return grades if isinstance(grades, list) else None

    def write_grades(self, run: str, grades: Sequence[dict[str, bool]]) -> None:
        self.write(f"grades/{run}.json", json.dumps({"samples_sha256": self.samples_hash(run), "grades": list(grades)}))

    def own_folder(self, name: str) -> Path:
        """A folder of the store for further files, made if need be."""
        with _explained(self.folder / name):
            return writing.own_folder(self.folder / name, self.folder)

    def _append(self, name: str, lines: Iterable[dict[str, Any]]) -> None:
        with _explained(self.folder / name):
            path = self._place(name)
            new = not path.exists()
            writing.append(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
            if new:
                writing.sync_folder(path.parent)

    def _place(self, name: str) -> Path:
        """The path of a file whose folder is there and is the store's own."""
        return writing.own_folder((self.folder / name).parent, self.folder) / Path(name).name


@contextmanager
def open_store(folder: Path, inside: Path | None = None) -> Iterator[Store]:
    """Lock a folder, made if need be, for this process alone; one that is part of another, `inside`, may be no link."""
    with _explained(folder):
        writing.own_folder(folder, inside or folder)
        _check_ours(folder)
    with _explained(folder / ".lock"):
        lock = writing.open_plain(folder / ".lock", os.O_RDWR | os.O_CREAT)
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


def write_whole(path: Path, content: str | bytes) -> Path:
    """A whole file, or none of it; its folder is made if need be."""
    with _explained(path):
        path.parent.mkdir(exist_ok=True)
        return writing.write_whole(path, content)


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


def _read(path: Path) -> bytes | None:
    """None where there is nothing; a link that points nowhere is refused rather than passed over."""
    with _explained(path):
        return writing.read_plain(path) if os.path.lexists(path) else None


def _whole_lines(path: Path, shape: Shape) -> list[dict[str, Any]]:
    raw = _read(path) or b""
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):  # a kill or a full disk tore the last line
        with _explained(path):
            writing.cut(path, whole)
    return [_record(line, f"{path}, line {number}", shape) for number, line in enumerate(raw[:whole].splitlines(), start=1)]


# -- the shape of a line ------------------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    """Halves of characters, which JSON can hold, cannot be written again."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value) and value >= 0


Shape = dict[str, tuple[Callable[[Any], bool], str]]  # of each name: what it has to be, and that in words
_TEXT, _COUNT = (_is_text, "a text"), (_is_count, "a whole number")
_SAMPLE: Shape = {
    **dict.fromkeys(("id", "text", "finish_reason"), _TEXT),
    **dict.fromkeys(("loops", "contested", "touched"), _COUNT),
    "token_ids": (lambda value: isinstance(value, list) and all(map(_is_count, value)), "a list of whole numbers"),
}
_TIMING: Shape = {"run": _TEXT, "batch": _COUNT, "tokens": _COUNT, "seconds": (_is_seconds, "a number of at least 0")}


def _record(raw: bytes, where: str, shape: Shape) -> dict[str, Any]:
    """A JSON object of that shape; anything else is refused."""
    try:
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        for name, (fits, words) in shape.items():
            if not fits(found.get(name)):
                raise ValueError(f"`{name}` is not {words}")
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} is damaged ({error}): use another folder") from error
    return found


# -- the file system ----------------------------------------------------------------------------------------------------


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of the file system in words."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "choose another folder by --out")
        raise StoreError(f"{path}: {error.strerror or error}; {advice}") from error
