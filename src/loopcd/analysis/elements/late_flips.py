"""Tables 7 and 8: how often late loops change their mind, and what taking that back does."""

from __future__ import annotations

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import Element, fraction, phrase, points
from loopcd.analysis.elements.uncertainty import graded
from loopcd.analysis.intervals import rate, rate_difference
from loopcd.analysis.interventions import Reversion, graded_in_rounds, resumed_texts, reversions
from loopcd.analysis.laboratory import Laboratory
from loopcd.analysis.result import Finding, Result, above, together
from loopcd.evaluation import paper
from loopcd.evaluation.table import Cell, Column, Table, Verdict

KINDS = {"early overconfidence": statistics.early_overconfident, "Late-Flip": statistics.late_flips}


def _table7(lab: Laboratory) -> Result:
    counts: dict[str, list[int]] = {kind: [] for kind in KINDS}
    lengths, verdicts = [], []
    for trace, right in graded(lab):
        lengths.append(len(trace))
        verdicts.append(right)
        for kind, marked in KINDS.items():
            counts[kind].append(int(marked(trace).sum()))
    tokens, right = np.array(lengths), np.array(verdicts, dtype=bool)
    rows: list[tuple[Cell, ...]] = []
    parts: list[str] = []
    more: list[Verdict] = []
    for kind, each in counts.items():
        found = np.array(each)
        rates = [rate(found * mask, tokens * mask) for mask in (right, ~right)]
        difference = rate_difference(found * ~right, tokens * ~right, found * right, tokens * right)
        rows.append((kind, *rates, difference, *(fraction(theirs) for theirs in paper.FREQUENCIES[kind])))
        wrong, fine = phrase(rates[1], digits=2), phrase(rates[0], digits=2)
        parts.append(f"{kind} is found at {wrong} of the tokens of wrong and {fine} of right answers")
        more.append(above(difference))
    rarer = rate_difference(np.array(counts["early overconfidence"]), tokens, np.array(counts["Late-Flip"]), tokens)
    more.append(above(rarer))
    columns = (
        Column("type", "type"),
        Column("right", "right answers", "percent"),
        Column("wrong", "wrong answers", "percent"),
        Column("difference", "wrong − right", "points"),
        Column("paper_right", "paper: Huginn-0125, GSM8K, right", "percent"),
        Column("paper_wrong", "paper: Huginn-0125, GSM8K, wrong", "percent"),
    )
    half = lab.loops // 2
    notes = (
        f"Shares of the tokens. Late-Flip: at least once in loops {half + 1} to {lab.loops} the winner is not first. "
        "Early overconfidence: hard, and no Late-Flip.",
    )
    claim = "both are more frequent in wrong answers, and Late-Flips are the rarer of the two"
    told = "; ".join(parts)
    finding = Finding(claim, together(more), f"{told[0].upper()}{told[1:]}.")
    return Result(Table(columns, tuple(rows)), finding, notes=notes)


def _table8(lab: Laboratory) -> Result:
    task, metric = lab.task(), lab.metric
    right: list[bool] = []
    wanted: list[Reversion] = []
    for place, (trace, correct) in enumerate(graded(lab)):
        right.append(correct)
        wanted += reversions(trace, place)
    texts = resumed_texts(lab, task, wanted)
    items = [task.items[each.item] for each in wanted]
    grades = [each[metric] for each in graded_in_rounds(task, items, texts)]
    changed, tried = np.zeros((2, len(right))), np.zeros((2, len(right)))  # [was wrong, was right] of each answer
    for each, now in zip(wanted, grades, strict=True):
        was = right[each.item]
        tried[int(was), each.item] += 1
        changed[int(was), each.item] += was != now
    repaired, broken = (rate(changed[was], tried[was]) for was in (0, 1))
    more = rate_difference(changed[1], tried[1], changed[0], tried[0])
    table = Table(
        (
            Column("outcome", "outcome"),
            Column("rate", "of the positions", "percent"),
            Column("positions", "Late-Flip positions", "count"),
            Column("answers", "answers", "count"),
            Column("paper", "paper: Huginn-0125, GSM8K", "percent"),
        ),
        (
            ("wrong → right", repaired, *_counts(tried[0]), fraction(paper.REVERSION["repaired"])),
            ("right → wrong", broken, *_counts(tried[1]), fraction(paper.REVERSION["broken"])),
        ),
    )
    notes = (
        "Every Late-Flip position is reverted by itself: the prefix stays, the winner gives way to the most frequent other "
        f"first choice of loops {lab.loops // 2 + 1} to {lab.loops}, greedy decoding goes on. Intervals resample answers.",
    )
    claim = "taking late revisions back breaks right answers more often than it repairs wrong ones"
    told = (
        f"Reverting a Late-Flip repairs {phrase(repaired)} of the wrong answers and breaks {phrase(broken)} of the right ones"
    )
    told += f": {points(more, 1)} apart." if more else "; there are too few of them to compare."
    return Result(table, Finding(claim, above(more), told), notes=notes)


def _counts(tried: np.ndarray) -> tuple[int, int]:
    return int(tried.sum()), int((tried > 0).sum())


TABLE7 = Element("table7", "Table 7: early overconfidence and Late-Flips", _table7)
TABLE8 = Element("table8", "Table 8: Late-Flip reversion", _table8)
