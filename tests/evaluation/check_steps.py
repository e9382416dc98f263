"""All that the word problems promise, on as many of them as are asked for: `python tests/evaluation/check_steps.py 100000`.

Answers are recomputed by an evaluator that shares nothing with the generator; no split shares a question or a computation with
another; a question has one answer; an interpreter of its own makes the same bytes again. The tests run this on a few thousand.
"""

from __future__ import annotations

import ast
import hashlib
import operator
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

from loopcd.evaluation.graders import flex_match, strict_match
from loopcd.evaluation.tasks.steps import SPLITS, VARIANTS, Problem, split_of, stream

EQUATION = re.compile(r"([0-9(][0-9 ()+*/-]*) = ([0-9]+)")
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
# parts of a thousand, by variant and split
SHARES = {
    ("steps", "train"): 550,
    ("steps", "tuning"): 50,
    ("steps", "test"): 100,
    ("steps-easy", "train"): 80,
    ("steps-easy", "test"): 20,
    ("steps-hard", "train"): 40,
    ("steps-hard", "tuning"): 10,
    ("steps-hard", "test"): 20,
    ("steps-shift", "train"): 50,
    ("steps-shift", "tuning"): 10,
    ("steps-shift", "test"): 20,
    ("steps-cue", "train"): 30,
    ("steps-cue", "test"): 10,
    ("steps-cue-shift", "tuning"): 5,
    ("steps-cue-shift", "test"): 5,
}


def evaluate(node: ast.expr, seen: list[str]) -> Fraction:
    """Python's own grammar and exact fractions: nothing shared with the generator. Records each operation."""
    if isinstance(node, ast.Constant):
        return Fraction(int(str(node.value)))
    assert isinstance(node, ast.BinOp)
    left, right = evaluate(node.left, seen), evaluate(node.right, seen)
    seen.append(f"{left}{SYMBOLS[type(node.op)]}{right}")
    return OPERATORS[type(node.op)](left, right)


def assert_right(problem: Problem) -> None:
    *lines, last = problem.answer.split("\n")
    given = set(re.findall(r"[0-9]+", problem.question)) | {"2", "3", "4"}  # twice, half, a third, a quarter
    computed: list[str] = []
    result = Fraction(0)
    for line in lines:
        found = EQUATION.findall(line)
        assert len(found) == 1, line
        expression, claimed = found[0]
        assert set(re.findall(r"[0-9]+", expression)) <= given, (problem.question, line)
        result = evaluate(ast.parse(expression.strip(), mode="eval").body, computed)
        assert result == int(claimed), line
        given.add(claimed)
    assert last == f"#### {result}"
    assert problem.gold == result
    assert tuple(computed) == problem.operations
    assert strict_match(problem.answer, problem.gold) and flex_match(problem.answer, problem.gold)


@dataclass
class Figures:
    """What was seen of one variant."""

    problems: int = 0
    regular: int = 0  # contradict no regularity
    operations: int = 0
    most_operations: int = 0
    largest: int = 0  # number of any equation

    def add(self, problem: Problem) -> None:
        self.problems += 1
        self.regular += problem.cue is None
        self.operations += len(problem.operations)
        self.most_operations = max(self.most_operations, len(problem.operations))
        self.largest = max(self.largest, *map(int, re.findall(r"[0-9]+", problem.answer)))

    def __str__(self) -> str:
        return (
            f"{self.problems} problems, {self.operations / self.problems:.2f} operations (at most {self.most_operations}), "
            f"numbers up to {self.largest}, the regularity holds in {100 * self.regular / self.problems:.2f} %"
        )


@dataclass
class Seen:
    figures: dict[str, Figures] = field(default_factory=lambda: {variant: Figures() for variant in VARIANTS})
    answers: dict[str, str] = field(default_factory=dict)
    questions: dict[str, set[str]] = field(default_factory=lambda: {split: set() for split in SPLITS})
    computed: dict[str, set[tuple[str, ...]]] = field(default_factory=lambda: {split: set() for split in SPLITS})


def problems_of(number: int, seed: int) -> Iterator[tuple[str, str, Problem]]:
    for (variant, split), share in SHARES.items():
        for problem in islice(stream(variant, split, seed), max(1, number * share // 1000)):
            yield variant, split, problem


def digest(number: int, seed: int) -> str:
    made = hashlib.sha256()
    for _, _, problem in problems_of(number, seed):
        made.update(f"{problem.text}\n\n".encode())
    return made.hexdigest()


def check(number: int, seed: int) -> dict[str, Figures]:
    """Figures by variant; an AssertionError where a promise is broken."""
    seen = Seen()
    for variant, split, problem in problems_of(number, seed):
        assert_right(problem)
        assert split_of(problem.operations) == split
        assert seen.answers.setdefault(problem.question, problem.answer) == problem.answer, problem.question
        seen.questions[split].add(problem.question)
        seen.computed[split].add(problem.operations)
        seen.figures[variant].add(problem)
    for one, other in (("train", "tuning"), ("train", "test"), ("tuning", "test")):
        assert not seen.questions[one] & seen.questions[other]
        assert not seen.computed[one] & seen.computed[other]
    return seen.figures


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(number: int, seed: int = 1) -> None:
    begun = time.monotonic()
    figures = check(number, seed)
    again = [subprocess.check_output([sys.executable, __file__, "digest", str(number), str(seed)], text=True).strip()]
    again.append(digest(number, seed))
    assert len(set(again)) == 1, again
    for variant, each in figures.items():
        say(f"{variant}: {each}")
    say(f"All answers right, no split shares anything with another, twice the same bytes (sha256 {again[0][:16]}…);")
    say(f"{sum(each.problems for each in figures.values())} problems in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["digest"]:
        say(digest(int(sys.argv[2]), int(sys.argv[3])))
    else:
        main(*map(int, sys.argv[1:] or ["100000"]))
