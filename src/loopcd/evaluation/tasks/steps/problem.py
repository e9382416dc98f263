"""What a problem is, its arithmetic, and the unfinished form in which a family hands it over."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

Cue = Literal["keyword", "intermediate", "distractor"]
Symbol = Literal["+", "-", "*", "/"]
PRECEDENCE: dict[Symbol, int] = {"+": 1, "-": 1, "*": 2, "/": 2}
COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


class Unsuitable(Exception):
    """The numbers drawn do not make a problem (a division with a rest, a result out of range): draw again."""


@dataclass(frozen=True)
class Operation:
    """Two operands, each a number or another operation.

    A nested operation is written inside the same equation, `( 9 - 4 ) * 2 = 10`; a number that an earlier line computed is
    written as that number.
    """

    symbol: Symbol
    left: int | Operation
    right: int | Operation

    @cached_property
    def value(self) -> int:
        left, right = value_of(self.left), value_of(self.right)
        if self.symbol == "/" and (right == 0 or left % right):
            raise Unsuitable(f"{left} / {right} leaves a rest")
        return COMPUTE[self.symbol](left, right)

    def steps(self) -> Iterator[Operation]:
        """This operation and those inside it, in the order in which they are computed."""
        for operand in (self.left, self.right):
            if isinstance(operand, Operation):
                yield from operand.steps()
        yield self

    @property
    def computed(self) -> str:
        """What is computed, whatever its operands come from: `12+5`."""
        return f"{value_of(self.left)}{self.symbol}{value_of(self.right)}"

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


def total(operands: Sequence[int | Operation]) -> Operation:
    """All operands, at least two, in one sum: `a + b + c`."""
    first, second, *others = operands
    return reduce(lambda summed, operand: Operation("+", summed, operand), others, Operation("+", first, second))


@dataclass(frozen=True)
class Line:
    """One line of a worked answer, `On Monday she has 4 + 3 = 7 coins.`, and the question that this line would settle."""

    before: str
    operation: Operation
    after: str
    asks: str

    def __str__(self) -> str:
        return f"{self.before} {self.operation} = {self.operation.value} {self.after}."


@dataclass(frozen=True)
class Sketch:
    """A family's proposal: the facts in order, the worked lines, and a sentence that is true but of no use."""

    facts: list[str]
    lines: list[Line]
    irrelevant: str


@dataclass(frozen=True)
class Problem:
    """A question with its worked answer.

    `operations` is what is computed, in order, as in `("4*3", "12+5")`; the splits are disjoint by it.
    `cue` names the regularity of the training mix that this problem contradicts, or is None if it contradicts none.
    """

    question: str
    answer: str
    gold: int
    family: str
    operations: tuple[str, ...]
    cue: Cue | None

    @property
    def prompt(self) -> str:
        """What a model is given; its continuation starts with a space."""
        return f"Question: {self.question}\nAnswer:"

    @property
    def text(self) -> str:
        """Prompt and worked answer, as in the training text."""
        return f"{self.prompt} {self.answer}"

    @property
    def equations(self) -> tuple[str, ...]:
        """The equations of the worked answer, as they are written there: `4 * 3 + 5 = 17`."""
        lines = (line.rstrip(".").split() for line in self.answer.splitlines()[:-1])
        return tuple(" ".join(word for word in words if word in "()+-*/=" or word.isdigit()) for words in lines)
