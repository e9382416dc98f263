"""A program's results as plain data: what leaves its process, and how it is read where the answers are.

It is written as a pickle that may name nothing but the few functions below, so that reading it can only make values of
Python's own types, and of a few libraries' that EvalPlus compares as it does those. A value of any other type arrives as
one that equals nothing. A value that claims to equal everything, or whose type says how it is compared, gets no say.
"""

import itertools
import math
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import ItemsView, Iterator, KeysView
from decimal import Decimal
from fractions import Fraction
from types import FunctionType
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


# Values of derived types compare as those of the type that they derive from, but EvalPlus asks for the very type where it
# allows a tolerance.
class DerivedInt(int): ...


class DerivedFloat(float): ...


class DerivedStr(str): ...


class DerivedBytes(bytes): ...


class DerivedTuple(tuple): ...


class DerivedList(list):
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  # a derived type may have added one


class DerivedDict(dict):
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


class DerivedSet(set):
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


_DERIVED = {
    base: derived
    for derived in (DerivedInt, DerivedFloat, DerivedStr, DerivedBytes, DerivedTuple, DerivedList, DerivedDict, DerivedSet)
    for base in derived.__bases__
}
_LIBRARY = {"Counter": Counter, "OrderedDict": OrderedDict, "Fraction": Fraction, "Decimal": Decimal, "deque": deque}


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


class _Writer(pickle.Pickler):
    """Calls `reducer_override` only for what is not exactly of a built-in type."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType and obj is _NAMED.get(obj.__name__):  # a function of ours, which is written by its name
            return NotImplemented
        if kind is complex:
            return complex_number, (obj.real, obj.imag)
        if isinstance(obj, numpy.generic | numpy.ndarray):
            return _of_numpy(obj)
        if kind in _LIBRARY.values():
            return _of_library(obj)
        for base, made in _DERIVED.items():  # by the base's own functions: those of the type may lie
            if issubclass(kind, base):
                return derived, (made.__name__, _as(base, obj))
        if issubclass(kind, KeysView | ItemsView | frozenset) and _all_hashable(obj):
            return key_view, (list(obj),)
        if hasattr(kind, "__iter__"):
            return iterable, (list(itertools.islice(obj, _ITEMS)),)
        return something, ()


def _as(base: type, value: Any) -> Any:
    """The value as one of the base exactly."""
    if base is int:
        return int.__index__(value)
    if base is float:
        return float.__float__(value)
    if base is str:
        return str.__str__(value)
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))  # pyright: ignore[reportAttributeAccessIssue]


def _all_hashable(items: Any) -> bool:
    try:
        return frozenset(items) is not None
    except TypeError:
        return False


def _of_numpy(value: Any) -> Any:
    array = numpy.asarray(value)
    if type(value) not in (numpy.ndarray, array.dtype.type) or array.dtype.kind not in "biufcUS":
        return something, ()
    shape = None if isinstance(value, numpy.generic) else array.shape
    return of_numpy, (array.dtype.str, shape, array.tobytes())


def _of_library(value: Any) -> Any:
    parts = {
        Fraction: lambda: (value.numerator, value.denominator),
        Decimal: lambda: (str(value),),
        deque: lambda: (list(value), value.maxlen),
    }.get(type(value), lambda: (list(value.items()),))
    return of_library, (type(value).__name__, *parts())


# -- what a pickle may name ---------------------------------------------------------------------------------------------


def complex_number(real: float, imaginary: float) -> complex:
    return complex(real, imaginary)


def derived(name: str, value: Any) -> Any:
    (kind,) = (kind for kind in _DERIVED.values() if kind.__name__ == name)
    return kind(value)


def key_view(items: list[Any]) -> frozenset[Any]:
    return frozenset(items)


def iterable(items: list[Any]) -> Iterable:
    return Iterable(list(items))


def something() -> Something:
    return Something()


def of_numpy(kind: str, shape: tuple[int, ...] | None, content: bytes) -> Any:
    if numpy.dtype(kind).kind not in "biufcUS":
        raise ValueError("not a number or a text")
    size = 1 if shape is None else math.prod(shape)
    if len(content) != size * numpy.dtype(kind).itemsize:
        raise ValueError("not as long as it says")
    array = numpy.frombuffer(content, kind).copy() if content else numpy.zeros(size, kind)
    return array[0] if shape is None else array.reshape(shape)


def of_library(name: str, *parts: Any) -> Any:
    kind: Any = _LIBRARY[name]
    return kind(dict(parts[0])) if name in ("Counter", "OrderedDict") else kind(*parts)


_NAMED = {each.__name__: each for each in (complex_number, derived, key_view, iterable, something, of_numpy, of_library)}


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name != __name__ or global_name not in _NAMED:
            raise Forged(f"{module_name}.{global_name}")
        return _NAMED[global_name]
