"""Figure 6 and the appendix's counts: where greedy and LoopCD part, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import fraction, phrase, points, versus
from loopcd.analysis.intervals import estimate, rate, rate_difference, ratio
from loopcd.analysis.laboratory import GREEDY, Laboratory
from loopcd.analysis.result import Finding, Result, above
from loopcd.evaluation import paper
from loopcd.evaluation.partings import diverging
from loopcd.evaluation.statistics import wilson
from loopcd.evaluation.table import Cell, Column, Estimate, Table

EXAMPLES = 4
KINDS = {"hard": statistics.hard_tokens, "number": statistics.numeric_tokens, "operator": statistics.operator_tokens}


def first_difference(before: Sequence[int], after: Sequence[int]) -> int | None:
    """The first position where two token sequences differ; None where they do not."""
    pairs = enumerate(zip_longest(before, after))
    return next((place for place, (one, other) in pairs if one != other), None)


def fig6(lab: Laboratory) -> Result:
    greedy, contrasted = lab.answers(GREEDY, lab.loopcd())
    parts = [first_difference(*pair) for pair in zip(greedy.token_ids, contrasted.token_ids, strict=True)]
    counts: dict[str, list[list[int]]] = {kind: [] for kind in KINDS}
    for trace, part in zip(lab.traces(), parts, strict=True):
        there = part is not None and part < len(trace)
        for kind, marked in KINDS.items():
            mask = marked(trace)
            counts[kind].append([int(there and mask[part]), int(there), mask.sum(), len(trace)])
    sums = {kind: np.array(each).T for kind, each in counts.items()}  # at the parting, partings, everywhere, tokens: by answer
    rows = tuple((kind, rate(*each[:2]), rate(*each[2:]), rate_difference(*each)) for kind, each in sums.items())
    columns = (
        Column("token", "greedy's token is"),
        Column("parting", "where the texts part", "percent"),
        Column("everywhere", "of all tokens", "percent"),
        Column("difference", "difference", "points"),
    )
    differ = sum(part is not None for part in parts)
    _, at_parting, everywhere, more = rows[0]
    told = (
        f"{differ} of {len(parts)} texts differ. Where they first part, greedy's token is hard in {phrase(at_parting)} of the "
        f"cases, against {phrase(everywhere)} of all tokens{f': {points(more, 1)}' if more else ''}."
    )
    finding = Finding("LoopCD changes the tokens that the reasoning turns on", above(more), told)
    notes = ("The texts: in turn one that became right, one that became wrong, one that stayed what it was.",)
    examples = diverging(lab.task(), [greedy, contrasted], EXAMPLES)
    return Result(Table(columns, rows), finding, examples=tuple(examples), notes=notes)


def appendix(lab: Laboratory) -> Result:
    greedy, contrasted = lab.answers(GREEDY, lab.loopcd())
    compared = versus(greedy, contrasted, lab.metric)
    was, now = (np.array(answers.right(lab.metric)) for answers in (greedy, contrasted))
    mended = estimate([~was & now, was & ~now], ratio)
    parts = [first_difference(*pair) for pair in zip(greedy.token_ids, contrasted.token_ids, strict=True)]
    at_once, ever = sum(part == 0 for part in parts), sum(part is not None for part in parts)
    first = fraction(paper.CHANGES["first token"])
    rows: tuple[tuple[Cell, ...], ...] = (
        ("wrong → right", compared.wrong_to_right, None, None, None, None),
        ("right → wrong", compared.right_to_wrong, None, None, None, None),
        ("wrong → right for each right → wrong", None, mended, None, paper.CHANGES["ratio"], None),
        ("first token differs", at_once, None, Estimate.of(wilson(at_once, len(parts))), None, first),
        ("any token differs", ever, None, Estimate.of(wilson(ever, len(parts))), None, None),
    )
    columns = (
        Column("what", "answers by LoopCD against greedy's"),
        Column("count", "answers", "count"),
        Column("ratio", "ratio", "number"),
        Column("share", "share", "percent"),
        Column("paper_ratio", "paper: Huginn-0125, GSM8K, ratio", "number"),
        Column("paper_share", "paper: Huginn-0125, GSM8K, share", "percent"),
    )
    told = (
        f"{compared.wrong_to_right} answers became right and {compared.right_to_wrong} wrong"
        f"{f', a ratio of {phrase(mended, 1, 2, str())}' if mended else ''} (p = {compared.mcnemar_p:.2f}); the first "
        f"token differs in {100 * at_once / len(parts):.1f} % of the answers."
    )
    verdict = Estimate.difference(compared).above(0)
    return Result(Table(columns, rows), Finding("more answers are mended than broken (1.49 to one)", verdict, told))
