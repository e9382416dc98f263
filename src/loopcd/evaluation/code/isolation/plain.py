"""A program's results as plain data: what leaves its process, and how it is read where the answers are.

It is written as a pickle that may name nothing but one function of ours, so that reading it can only make values of Python's
own types, and of a few libraries' that EvalPlus compares as it does those. A value of any other type arrives as
one that equals nothing. A value that claims to equal everything, or whose type says how it is compared, gets no say.
"""

import itertools
import math
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, ItemsView, Iterator, KeysView
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, BinaryIO

import numpy

_ITEMS = 20_000_000  # of an iterator; beyond that it is taken for an endless one


class Forged(Exception):
    """These bytes were not written by `write`."""


class Something:
    """A value that is not None, and of which nothing else is known."""


class Iterable(Something):
    """A value that can only be gone through, such as a generator."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def _of_numpy(kind: str, shape: tuple[int, ...] | None, content: bytes) -> Any:
    if numpy.dtype(kind).kind not in _NUMBERS_AND_TEXTS:
        raise ValueError("not a number or a text")
    size = 1 if shape is None else math.prod(shape)
    if len(content) != size * numpy.dtype(kind).itemsize:
        raise ValueError("not as long as it says")
    if size == 0:
        return Iterable([])  # spread over the right numbers, an array without any would be close to all of them
    array = numpy.frombuffer(content, kind).copy() if content else numpy.zeros(size, kind)
    return array[0] if shape is None else array.reshape(shape)


_NUMBERS_AND_TEXTS = "biufcUS"  # numpy's letters
_EXACTLY: dict[type, Callable[[Any], Any]] = {  # as one of this type, by its own functions: those of a derived type may lie
    **{base: lambda value, base=base: base(base.__iter__(value)) for base in (bytes, tuple, list, set)},
    dict: lambda value: dict(dict.items(value)),
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
}
# Values of derived types compare as those of the type that they derive from, but EvalPlus asks for the very type where it
# allows a tolerance. A derived type may have added a hash.
_DERIVED: dict[type, Any] = {
    base: type(f"Derived{base.__name__}", (base,), {"__hash__": base.__hash__ or object.__hash__}) for base in _EXACTLY
}
_LIBRARY: dict[type, Callable[[Any], tuple[Any, ...]]] = {  # what each is made of again
    complex: lambda value: (value.real, value.imag),
    Fraction: lambda value: (value.numerator, value.denominator),
    Decimal: lambda value: (str(value),),
    deque: lambda value: (list(value), value.maxlen),
    Counter: lambda value: (dict(value),),
    OrderedDict: lambda value: (dict(value),),
}
# what a pickle may have made, by its name there
_MADE: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (*_LIBRARY, *_DERIVED.values(), frozenset, Iterable, Something)},
    "numpy": _of_numpy,
}


def made(name: str, *parts: Any) -> Any:
    """The one function that a pickle may name."""
    value = _MADE[name](*parts)
    if hasattr(value, "__dict__"):
        value.__setstate__ = _refused
    return value


def _refused(_: Any) -> None:
    """`write` hangs nothing on a value; numpy would believe what it found there."""
    raise Forged("a value with attributes")


made.__setstate__ = _refused  # pyright: ignore[reportFunctionMemberAccess]


def write(value: Any, file: BinaryIO) -> None:
    _Writer(file, protocol=5).dump(value)


def read(file: BinaryIO) -> Any:
    """One value. Raises EOFError where the writer ended early, and Forged for what it cannot have written."""
    try:
        return _Reader(file).load()
    except (EOFError, MemoryError):
        raise
    except Exception as error:
        if "truncated" in str(error):
            raise EOFError from error
        raise Forged(str(error)) from error


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) != (__name__, "made"):
            raise Forged(f"{module_name}.{global_name}")
        return made


class _Writer(pickle.Pickler):
    """Calls `reducer_override` only for what is not exactly of a built-in type."""

    def reducer_override(self, obj: Any) -> Any:
        return NotImplemented if obj is made else (made, _parts(obj))


def _parts(value: Any) -> tuple[Any, ...]:
    """What `made` needs to make it again."""
    kind = type(value)
    if isinstance(value, numpy.generic | numpy.ndarray):
        return _parts_of_numpy(value)
    if kind in _LIBRARY:
        return kind.__name__, *_LIBRARY[kind](value)
    for base, derived in _DERIVED.items():
        if issubclass(kind, base):
            return derived.__name__, _EXACTLY[base](value)
    if issubclass(kind, KeysView | ItemsView | frozenset):
        with suppress(TypeError):  # where not all of it can be hashed
            return "frozenset", list(frozenset(value))
    if hasattr(kind, "__iter__"):
        return "Iterable", list(itertools.islice(value, _ITEMS))
    return ("Something",)


def _parts_of_numpy(value: Any) -> tuple[Any, ...]:
    array = numpy.asarray(value)
    if type(value) not in (numpy.ndarray, array.dtype.type) or array.dtype.kind not in _NUMBERS_AND_TEXTS:
        return ("Something",)
    return "numpy", array.dtype.str, None if isinstance(value, numpy.generic) else array.shape, array.tobytes()
