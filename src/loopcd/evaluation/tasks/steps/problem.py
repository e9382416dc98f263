"""What a problem is, and the unfinished form in which a family hands it over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopcd.evaluation.tasks.steps.equations import Operation

Cue = Literal["keyword", "intermediate", "distractor"]


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

    facts: tuple[str, ...]
    lines: tuple[Line, ...]
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
        return tuple(_equation_in(line) for line in self.answer.splitlines()[:-1])


def _equation_in(line: str) -> str:
    symbols = [word for word in line.rstrip(".").split() if word in "()+-*/=" or word.isdigit()]
    return " ".join(symbols)


def operations_of(lines: tuple[Line, ...]) -> tuple[str, ...]:
    steps = (step for line in lines for step in line.operation.steps())
    return tuple(_flat(step) for step in steps)


def _flat(step: Operation) -> str:
    left, right = (side if isinstance(side, int) else side.value for side in (step.left, step.right))
    return f"{left}{step.symbol}{right}"
