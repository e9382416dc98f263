"""What an element of the paper is, and what several share: columns, the paper's figures as cells, figures in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loopcd.analysis.laboratory import GREEDY, Answers, Laboratory, Wanted
from loopcd.analysis.result import Result
from loopcd.evaluation import paper
from loopcd.evaluation.statistics import Comparison, compare, wilson
from loopcd.evaluation.table import Estimate


@dataclass(frozen=True)
class Element:
    """`wanted` lists the answers that are worth making together with those of other elements; `compute` may ask for more."""

    name: str  # on the command line, and of its files
    title: str  # as in the paper
    compute: Callable[[Laboratory], Result]
    wanted: Callable[[Laboratory], Sequence[Wanted]] = lambda lab: (Wanted((GREEDY,)),)  # and their traces


def paper_heading(family: paper.Family, task: str, what: str = "") -> str:
    """As in "paper: Huginn-0125, GSM8K flex" (GSM8K's where it does not have the task)."""
    benchmark = paper.SHOWN[paper.known_task(task)]
    return f"paper: {paper.NAMES[family]}, {benchmark}{f' {what}' if what else ''}"


def fraction(percent: float | None) -> float | None:
    """A figure as the paper prints it, as a fraction."""
    return None if percent is None else round(percent / 100, 6)


def accuracy(answers: Answers, metric: str) -> Estimate:
    right = answers.right(metric)
    return Estimate.of(wilson(sum(right), len(right)))


def versus(before: Answers, after: Answers, metric: str) -> Comparison:
    """Paired on the same items."""
    return compare([before.right(metric)], [after.right(metric)])


def phrase(estimate: Estimate | None, scale: float = 100, digits: int = 1, unit: str = " %") -> str:
    """For sentences: "3.1 % [2.0, 4.4]"."""
    if estimate is None:
        return "no figure"
    told = f"{scale * estimate.value:.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return told
    return f"{told} [{scale * estimate.low:.{digits}f}, {scale * estimate.high:.{digits}f}]".replace("inf", "∞")


def points(estimate: Estimate, digits: int = 2) -> str:
    """For sentences: "+1.20 points [−0.40, +2.80]"."""
    told = f"{100 * estimate.value:+.{digits}f} points"
    if estimate.low is None or estimate.high is None:
        return told
    return f"{told} [{100 * estimate.low:+.{digits}f}, {100 * estimate.high:+.{digits}f}]"
