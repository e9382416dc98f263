"""Arithmetic of a worked answer: operations, their values, and how they are written.

An operation holds two operands, each a number or another operation. A nested operation is written inside the same
equation, `( 9 - 4 ) * 2 = 10`; a number that an earlier line computed is written as that number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Symbol = Literal["+", "-", "*", "/"]
PRECEDENCE: dict[str, int] = {"+": 1, "-": 1, "*": 2, "/": 2}


class Unsuitable(Exception):
    """The numbers drawn do not make a problem (a division with a rest, a result out of range): draw again."""


@dataclass(frozen=True)
class Operation:
    symbol: Symbol
    left: int | Operation
    right: int | Operation

    @cached_property
    def value(self) -> int:
        left, right = value_of(self.left), value_of(self.right)
        if self.symbol == "+":
            return left + right
        if self.symbol == "-":
            return left - right
        if self.symbol == "*":
            return left * right
        if right == 0 or left % right:
            raise Unsuitable(f"{left} / {right} leaves a rest")
        return left // right

    def steps(self) -> Iterator[Operation]:
        """This operation and those inside it, in the order in which they are computed."""
        for operand in (self.left, self.right):
            if isinstance(operand, Operation):
                yield from operand.steps()
        yield self

    def __str__(self) -> str:
        return f"{self._written(self.left, False)} {self.symbol} {self._written(self.right, True)}"

    def _written(self, operand: int | Operation, on_the_right: bool) -> str:
        if isinstance(operand, int):
            return str(operand)
        inner, outer = PRECEDENCE[operand.symbol], PRECEDENCE[self.symbol]
        needs_brackets = inner < outer or (inner == outer and on_the_right)
        return f"( {operand} )" if needs_brackets else str(operand)


def value_of(operand: int | Operation) -> int:
    return operand if isinstance(operand, int) else operand.value


def total(operands: list[int | Operation]) -> Operation:
    """All operands in one sum, `a + b + c`."""
    result = operands[0]
    for operand in operands[1:]:
        result = Operation("+", result, operand)
    if isinstance(result, int):
        raise ValueError(f"operands must hold at least two entries to be summed, got {operands!r}")
    return result
