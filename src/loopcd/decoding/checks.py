"""Checks of settings: each failure is one sentence with the name, the value and what is allowed."""

from math import isfinite
from numbers import Real
from typing import Any


def whole(name: str, value: Any, least: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise ValueError(f"{name}={value!r}: a whole number" + ("" if least is None else f" of at least {least}"))


def number(name: str, value: Any, least: float | None = None) -> None:
    finite = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if not finite or (least is not None and float(value) < least):
        raise ValueError(f"{name}={value!r}: a number" + ("" if least is None else f" of at least {least:g}"))


COLDEST, HOTTEST = 1e-6, 1e6  # beyond, logits divided by it would leave float32


def temperature(name: str, value: Any) -> None:
    number(name, value, 0)
    if value and not COLDEST <= value <= HOTTEST:
        raise ValueError(f"{name}={value!r}: 0, or from {COLDEST:g} to {HOTTEST:g}")


def positive(name: str, value: Any) -> None:
    number(name, value, 0)
    if value == 0:
        raise ValueError(f"{name}={value!r}: a number above 0")


def share(name: str, value: Any) -> None:
    """In (0, 1]; NaN is not."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) <= 1:
        raise ValueError(f"{name}={value!r}: above 0, and at most 1")


def yes_or_no(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: True or False")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        listed = " or ".join(f'"{each}"' for each in allowed)
        raise ValueError(f"{name}={value!r}: {listed}")


def need_tokenizer(tokenizer: Any, reason: str) -> None:
    if tokenizer is None:
        raise ValueError(f"{reason}: pass the tokenizer, as in generate(..., tokenizer=tokenizer)")
