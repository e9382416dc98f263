"""Traces on disk: an `.npz` of one or many, written one after the other and read one at a time.

Each trace takes a few arrays named `000000/tokens`, `000000/loops` and so on, so that `numpy.load` reads the file as well.
"""

import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, overload

import numpy as np

from loopcd.tracing.trace import LoopTrace
from loopcd.tracing.writing import open_plain

VERSION = 1
LARGEST = 256_000_000  # bytes of one trace, unpacked
LARGEST_FACTS = 16_000_000  # of these, what is said in words: JSON takes many times its size when it is read
DEEPEST = 20  # lists and objects within each other in `extra`
_TOKENS = ("token_ids", "winner", "unconstrained", "plausible_count", "exit_loop")  # stacked as int32 [5, n]
_LOOPS = ("logit", "runner_up", "log_norm", "entropy", "change")  # stacked as float32 [5, n, L]
_OWN = ("prompt_ids", "top_ids", "top_logits", "plausible_ids", "plausible_logits")
_FACTS: dict[str, type | UnionType] = {  # and what JSON holds of each
    **dict.fromkeys(("prompt", "text", "model", "method"), str),
    **dict.fromkeys(("amateur_loop", "num_loops"), int),
    **dict.fromkeys(("strength", "plausibility"), int | float),
    **dict.fromkeys(("token_texts", "extra"), dict),
    "pieces": list,
    "init_seed": int | None,
}


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes traces as they come; a context manager. What stood at the path before is replaced.

    The file can be read once the writer is closed, which also happens when the work is interrupted.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.written = 0
        self._target = os.fdopen(open_plain(self.path, os.O_RDWR | os.O_CREAT), "w+b")
        self._target.truncate(0)
        self._file = zipfile.ZipFile(self._target, "w", zipfile.ZIP_DEFLATED, compresslevel=4)

    def add(self, trace: LoopTrace) -> None:
        """Append one trace; what an interruption leaves of it is not listed in the file."""
        listed = len(self._file.filelist)
        try:
            for name, array in _packed(trace).items():
                with self._file.open(f"{self.written:06d}/{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        except BaseException:
            for part in self._file.filelist[listed:]:
                del self._file.NameToInfo[part.filename]
            del self._file.filelist[listed:]
            raise
        self.written += 1

    def close(self) -> None:
        self._file.close()
        self._target.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class TraceFile(Sequence[LoopTrace]):
    """The traces of a file, each loaded when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = zipfile.ZipFile(self.path)
        except Exception as error:  # zipfile raises many kinds on a file that only looks like one
            if isinstance(error, OSError) and error.filename is not None:  # not there, not allowed
                raise
            raise ValueError(f"{self.path} is not a file of traces, or was not written to its end") from error
        self._names = set(self._file.namelist())
        numbers = {name.partition("/")[0] for name in self._names}
        self._numbers = [f"{number:06d}" for number in range(len(numbers))]
        if numbers != set(self._numbers):
            raise ValueError(f"{self.path} is not a file of traces: it holds {', '.join(sorted(self._names)[:3])} …")

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def unpacked(self) -> int:
        """Bytes of all traces."""
        return sum(member.file_size for member in self._file.infolist())

    @overload
    def __getitem__(self, index: int) -> LoopTrace: ...
    @overload
    def __getitem__(self, index: slice) -> list[LoopTrace]: ...
    def __getitem__(self, index: int | slice) -> LoopTrace | list[LoopTrace]:
        if isinstance(index, slice):
            return [self._trace(number) for number in self._numbers[index]]
        return self._trace(self._numbers[index])

    def _trace(self, number: str) -> LoopTrace:
        names = {name: f"{number}/{name}.npy" for name in ("facts", "tokens", "loops", *_OWN)}
        try:
            self._check_size(names.values())
            return _unpacked({name: self._array(member) for name, member in names.items()})
        except Exception as error:  # whatever zipfile, zlib, numpy and json raise on what is not of their making
            raise ValueError(f"{self.path}, trace {int(number)}: {_reason(error)}") from error

    def _check_size(self, names: Iterable[str]) -> None:
        """Before anything is unpacked. Of other ways of packing, zipfile cannot unpack a part."""
        members = [self._file.getinfo(name) for name in names]
        if any(each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for each in members):
            raise ValueError("packed in another way than numpy packs")
        for size, most in ((members[0].file_size, LARGEST_FACTS), (sum(each.file_size for each in members), LARGEST)):
            if size > most:
                raise ValueError(f"unpacked it is larger than {most / 1e6:g} MB")

    def _array(self, name: str) -> np.ndarray:
        """No more is unpacked than the member says: asked for all of it, zipfile would unpack first and count then."""
        with self._file.open(name) as member:
            raw = member.read(self._file.getinfo(name).file_size)
        return np.lib.format.read_array(BytesIO(raw), allow_pickle=False)

    def close(self) -> None:
        self._file.close()


def read_traces(path: str | Path) -> TraceFile:
    """The traces that a `TraceWriter` wrote, as a sequence."""
    return TraceFile(path)


def _packed(trace: LoopTrace) -> dict[str, np.ndarray]:
    facts = {"version": VERSION, **{name: getattr(trace, name) for name in _FACTS}}
    try:
        written = json.dumps(facts, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra={trace.extra!r}: only what JSON can hold ({error})") from error
    return {
        "facts": np.frombuffer(written, np.uint8),
        "tokens": np.stack([getattr(trace, name).astype(np.int32) for name in _TOKENS]),
        "loops": np.stack([getattr(trace, name) for name in _LOOPS]),
        **{name: getattr(trace, name) for name in _OWN},
    }


def _unpacked(arrays: dict[str, np.ndarray]) -> LoopTrace:
    facts: Any = json.loads(
        arrays["facts"].tobytes().decode("utf-8", "surrogatepass"), parse_constant=_number, parse_float=_number
    )
    if not isinstance(facts, dict):
        raise ValueError("it says nothing of itself")
    version = facts.pop("version", None)
    if version != VERSION:
        raise ValueError(f"version {version!r} of the format: this release reads version {VERSION}")
    if set(facts) != set(_FACTS):
        raise ValueError(f"it should say {', '.join(sorted(set(_FACTS) ^ set(facts)))} otherwise")
    _check_facts(facts)
    facts["pieces"] = tuple(facts["pieces"])
    facts["token_texts"] = {int(token): text for token, text in facts["token_texts"].items()}
    tokens = dict(zip(_TOKENS, arrays["tokens"], strict=True))
    loops = dict(zip(_LOOPS, arrays["loops"], strict=True))
    tokens["exit_loop"] = tokens["exit_loop"].astype(np.int16)
    return LoopTrace(**tokens, **loops, **{name: arrays[name] for name in _OWN}, **facts)


def _check_facts(facts: dict[str, Any]) -> None:
    """Whoever reads a trace may rely on its types."""
    for name, kind in _FACTS.items():
        if not isinstance(facts[name], kind) or isinstance(facts[name], bool):
            raise ValueError(f"{name} is a {type(facts[name]).__name__}")
    if not all(isinstance(text, str) for text in (*facts["pieces"], *facts["token_texts"].values())):
        raise ValueError("pieces and token_texts are texts")
    if _deeper(facts["extra"], DEEPEST):
        raise ValueError(f"extra is nested deeper than {DEEPEST} times")


def _deeper(value: Any, levels: int) -> bool:
    """Deep nesting can be read and then not be written again."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(each, levels - 1) for each in inner)


def _number(text: str) -> float:
    """JSON's own numbers; Python reads NaN, Infinity and 1e999 as well."""
    if not isfinite(number := float(text)):
        raise ValueError(f"{text} is no number")
    return number


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
