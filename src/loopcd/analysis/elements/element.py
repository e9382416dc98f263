"""What an element of the paper is, and what several share: counts over answers, the paper's figures, figures in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loopcd.analysis.laboratory import GREEDY, Laboratory, Wanted
from loopcd.analysis.result import Result
from loopcd.evaluation import paper
from loopcd.evaluation.runner import Outcome
from loopcd.evaluation.statistics import Comparison, compare, wilson
from loopcd.evaluation.table import Estimate
from loopcd.tracing import LoopTrace


@dataclass(frozen=True)
class Element:
    """`wanted` lists the answers that are worth making together with those of other elements; `compute` may ask for more."""

    title: str  # as in the paper
    compute: Callable[[Laboratory], Result]
    wanted: Callable[[Laboratory], Sequence[Wanted]] = lambda lab: (Wanted((GREEDY,)),)  # and their traces


def greedy_right(lab: Laboratory, metric: str | None = None) -> np.ndarray:
    """[answers] bool: whether greedy's are right."""
    (greedy,) = lab.answers(GREEDY)
    return np.array(greedy.right(metric or lab.metric), dtype=bool)


def counted(lab: Laboratory, counts: Callable[[LoopTrace], Sequence[float]]) -> np.ndarray:
    """[counts, answers]: what is counted in the trace of each of greedy's answers."""
    return np.array([counts(trace) for trace in lab.traces()], dtype=float).T


def paper_heading(family: paper.Family, task: str, what: str = "") -> str:
    """As in "paper: Huginn-0125, GSM8K flex" (GSM8K's where it does not have the task)."""
    benchmark = paper.SHOWN[paper.known_task(task)]
    return f"paper: {paper.NAMES[family]}, {benchmark}{f' {what}' if what else ''}"


def fraction(percent: float | None) -> float | None:
    """A figure as the paper prints it, as a fraction."""
    return None if percent is None else round(percent / 100, 6)


def share(right: Sequence[bool]) -> Estimate:
    """How many of them are, with Wilson's interval."""
    return Estimate.of(wilson(sum(right), len(right)))


def versus(before: Outcome, after: Outcome, metric: str) -> Comparison:
    """Paired on the same items."""
    return compare([before.right(metric)], [after.right(metric)])


def gain(before: Outcome, after: Outcome, metric: str) -> Estimate:
    """By how much the accuracy changes."""
    return Estimate.difference(versus(before, after, metric))


def phrase(estimate: Estimate | None, scale: float = 100, digits: int = 1, unit: str = " %") -> str:
    """For sentences: "3.1 % [2.0, 4.4]"."""
    return "no figure" if estimate is None else _told(estimate, scale, f".{digits}f", unit).replace("inf", "∞")


def points(estimate: Estimate, digits: int = 2) -> str:
    """For sentences: "+1.20 points [−0.40, +2.80]"."""
    return _told(estimate, 100, f"+.{digits}f", " points")


def _told(estimate: Estimate, scale: float, form: str, unit: str) -> str:
    told = f"{scale * estimate.value:{form}}{unit}"
    if estimate.low is None or estimate.high is None:
        return told
    return f"{told} [{scale * estimate.low:{form}}, {scale * estimate.high:{form}}]"
