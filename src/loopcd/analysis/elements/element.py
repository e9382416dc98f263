"""What an element of the paper is: a name, what it needs, and how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loopcd.analysis.laboratory import GREEDY, Laboratory, Wanted
from loopcd.analysis.result import Result


def greedy_only(lab: Laboratory) -> Sequence[Wanted]:
    """What elements need that look at greedy's answers and their traces."""
    return (Wanted((GREEDY,)),)


@dataclass(frozen=True)
class Element:
    """`wanted` lists the answers that are worth making together with those of other elements; `compute` may ask for more."""

    name: str  # on the command line, and of its files
    title: str  # as in the paper
    compute: Callable[[Laboratory], Result]
    wanted: Callable[[Laboratory], Sequence[Wanted]] = greedy_only
