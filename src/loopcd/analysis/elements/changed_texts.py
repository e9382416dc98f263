"""Figure 6 and the appendix's counts: where greedy and LoopCD part, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import Element, fraction, phrase, points, versus
from loopcd.analysis.intervals import estimate, rate, rate_difference
from loopcd.analysis.laboratory import GREEDY, Answers, Laboratory, Wanted
from loopcd.analysis.result import Finding, Result, above
from loopcd.analysis.traced import greedy_traces
from loopcd.evaluation import paper
from loopcd.evaluation.partings import diverging
from loopcd.evaluation.statistics import wilson
from loopcd.evaluation.table import Cell, Column, Estimate, Table

EXAMPLES = 4


def _wanted(lab: Laboratory) -> Sequence[Wanted]:
    return (Wanted((GREEDY, lab.loopcd())),)


def first_difference(before: Sequence[int], after: Sequence[int]) -> int | None:
    """The first position where two token sequences differ; None where they do not."""
    pairs = enumerate(zip_longest(before, after))
    return next((place for place, (one, other) in pairs if one != other), None)


def _fig6(lab: Laboratory) -> Result:
    greedy, contrasted = lab.answers(GREEDY, lab.loopcd())
    parts = [first_difference(*pair) for pair in zip(greedy.token_ids, contrasted.token_ids, strict=True)]
    kinds = {"hard": [], "number": [], "operator": []}  # of an answer: at its parting, partings, in all, tokens
    for trace, part in zip(greedy_traces(lab), parts, strict=True):
        masks = {
            "hard": statistics.hard_tokens(trace),
            "number": statistics.numeric_tokens(trace),
            "operator": statistics.operator_tokens(trace),
        }
        there = part is not None and part < len(trace)
        for kind, mask in masks.items():
            kinds[kind].append([bool(there and mask[part]), there, mask.sum(), len(trace)])
    rows: list[tuple[Cell, ...]] = []
    sums = {kind: np.array(each, dtype=float).T for kind, each in kinds.items()}
    for kind, each in sums.items():
        rows.append((kind, rate(each[0], each[1]), rate(each[2], each[3]), rate_difference(*each)))
    columns = (
        Column("token", "greedy's token is"),
        Column("parting", "where the texts part", "percent"),
        Column("everywhere", "of all tokens", "percent"),
        Column("difference", "difference", "points"),
    )
    differ = sum(part is not None for part in parts)
    more = rate_difference(*sums["hard"])
    told = (
        f"{differ} of {len(parts)} texts differ. Where they first part, greedy's token is hard in "
        f"{phrase(rate(*sums['hard'][:2]))} of the cases, against {phrase(rate(*sums['hard'][2:]))} of all tokens"
    )
    told += f": {points(more, 1)}." if more else "."
    examples = diverging(lab.task(), [greedy.outcome, contrasted.outcome], EXAMPLES)
    finding = Finding("LoopCD changes the tokens that the reasoning turns on", above(more), told)
    notes = ("The texts: in turn one that became right, one that became wrong, one that stayed what it was.",)
    return Result(Table(columns, tuple(rows)), finding, examples=tuple(examples), notes=notes)


def _appendix(lab: Laboratory) -> Result:
    greedy, contrasted = lab.answers(GREEDY, lab.loopcd())
    compared = versus(greedy, contrasted, lab.metric)
    ratio = _ratio(greedy, contrasted, lab.metric)
    parts = [first_difference(*pair) for pair in zip(greedy.token_ids, contrasted.token_ids, strict=True)]
    at_once, ever = sum(part == 0 for part in parts), sum(part is not None for part in parts)
    first = fraction(paper.CHANGES["first token"])
    rows: tuple[tuple[Cell, ...], ...] = (
        ("wrong → right", compared.wrong_to_right, None, None, None, None),
        ("right → wrong", compared.right_to_wrong, None, None, None, None),
        ("wrong → right for each right → wrong", None, ratio, None, paper.CHANGES["ratio"], None),
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
        f"{f', a ratio of {phrase(ratio, 1, 2, str())}' if ratio else ''} (p = {compared.mcnemar_p or 1.0:.2f}); the first "
        f"token differs in {100 * at_once / len(parts):.1f} % of the answers."
    )
    verdict = Estimate.difference(compared).above(0)
    return Result(Table(columns, rows), Finding("more answers are mended than broken (1.49 to one)", verdict, told))


def _ratio(greedy: Answers, contrasted: Answers, metric: str) -> Estimate | None:
    was, now = np.array(greedy.right(metric)), np.array(contrasted.right(metric))
    return estimate([~was & now, was & ~now], lambda sums: sums[..., 0] / sums[..., 1])


FIG6 = Element("fig6", "Figure 6: texts side by side", _fig6, _wanted)
APPENDIX = Element("app", "Appendix: answers changed by LoopCD", _appendix, _wanted)
