"""The families of problems. Each is a function from random choices and a number of operations to a draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loopcd.evaluation.tasks.steps.draw import Draw
from loopcd.evaluation.tasks.steps.families.chain import chain
from loopcd.evaluation.tasks.steps.families.compare import compare
from loopcd.evaluation.tasks.steps.families.groups import groups
from loopcd.evaluation.tasks.steps.families.shop import shop
from loopcd.evaluation.tasks.steps.families.work import work
from loopcd.evaluation.tasks.steps.problem import Cue, Sketch


@dataclass(frozen=True)
class ProblemFamily:
    """`build(draw, operations, reverse)`; `cues` are the ways in which a problem of this family can mislead."""

    name: str
    build: Callable[[Draw, int, bool], Sketch]
    cues: tuple[Cue, ...]


FAMILIES: tuple[ProblemFamily, ...] = (
    ProblemFamily("chain", chain, ("intermediate", "distractor")),
    ProblemFamily("compare", compare, ("keyword",)),
    ProblemFamily("groups", groups, ("intermediate", "distractor")),
    ProblemFamily("shop", shop, ("intermediate", "distractor")),
    ProblemFamily("work", work, ("intermediate", "distractor")),
)
