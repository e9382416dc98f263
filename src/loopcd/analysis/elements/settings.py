"""Tables 4 and 5: which loop is the amateur, and at which positions the contrast is applied."""

from __future__ import annotations

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import Element, accuracy, fraction, paper_heading, points, versus
from loopcd.analysis.intervals import rate
from loopcd.analysis.laboratory import GREEDY, Answers, Laboratory, Wanted
from loopcd.analysis.result import Finding, Result, verdict_of
from loopcd.analysis.scaling import GOOD_DEPTH, PAPER_LOOPS, amateur_sweep, sweep_note
from loopcd.analysis.traced import greedy_traces
from loopcd.evaluation import paper
from loopcd.evaluation.plan import MethodSpec
from loopcd.evaluation.table import Cell, Column, Estimate, Table, Verdict

# -- Table 4


def sweep_methods(lab: Laboratory) -> dict[int, MethodSpec]:
    return {loop: lab.loopcd(loop) for loop in amateur_sweep(lab.loops)}


def _table4(lab: Laboratory) -> Result:
    methods = sweep_methods(lab)
    greedy, *rest = lab.answers(GREEDY, *methods.values())
    made = dict(zip(methods, rest, strict=True))
    columns = (
        Column("amateur", "amateur loop", "count"),
        Column("depth", "share of the depth", "percent"),
        Column("accuracy", lab.metric, "percent"),
        Column("difference", "Δ to greedy", "points"),
        Column("paper_loop", f"paper: amateur of {PAPER_LOOPS}", "count"),
        Column("paper_gsm8k", "paper: Huginn-0125, GSM8K flex", "percent"),
        Column("paper_humaneval", "paper: Huginn-0125, HumanEval", "percent"),
    )
    rows: list[tuple[Cell, ...]] = []
    for loop, answers in made.items():
        difference = Estimate.difference(versus(greedy, answers, lab.metric))
        rows.append((loop, loop / lab.loops, accuracy(answers, lab.metric), difference, *_theirs(loop, lab.loops)))
    theirs = [fraction(paper.main("huginn", "greedy", *reading)) for reading in (("gsm8k", "flex"), ("humaneval", "base"))]
    base = ("none (greedy)", None, accuracy(greedy, lab.metric), None, None, *theirs)
    notes = (sweep_note(lab.loops), f"Strength {lab.strength:g}; the paper's is 0.3.")
    return Result(Table(columns, (base, *rows)), _where_best(lab, made), notes=notes)


def _theirs(loop: int, loops: int) -> tuple[Cell, Cell, Cell]:
    """The paper's amateur at the nearest share of the depth, if it has one within a sixteenth of it."""
    nearest = min(paper.AMATEUR["gsm8k"], key=lambda their: abs(their / PAPER_LOOPS - loop / loops))
    if abs(nearest / PAPER_LOOPS - loop / loops) > 1 / 16:
        return None, None, None
    return nearest, fraction(paper.AMATEUR["gsm8k"][nearest]), fraction(paper.AMATEUR["humaneval"][nearest])


def _where_best(lab: Laboratory, made: dict[int, Answers]) -> Finding:
    right = {loop: sum(answers.right(lab.metric)) for loop, answers in made.items()}
    best, worst = max(right, key=lambda loop: right[loop]), min(right, key=lambda loop: right[loop])
    between = Estimate.difference(versus(made[worst], made[best], lab.metric))
    low, high = GOOD_DEPTH
    verdict: Verdict = "is undecided"
    if between.above(0) == "holds":
        verdict = verdict_of(low <= best / lab.loops <= high)
    told = (
        "All amateurs are right equally often."
        if right[best] == right[worst]
        else (
            f"The best amateur is loop {best} of {lab.loops} ({100 * best / lab.loops:.0f} % of the depth), ahead of the "
            f"worst, loop {worst}, by {points(between)}."
        )
    )
    return Finding(f"an amateur at {100 * low:.0f} to {100 * high:.0f} % of the depth works best", verdict, told)


# -- Table 5

PLACES = ("hard", "easy", "hard numeric", "easy numeric", "hard operator", "easy operator")


def selective_methods(lab: Laboratory) -> dict[str, MethodSpec]:
    return {"greedy": GREEDY, "all": lab.loopcd(), **{place: lab.loopcd(where=place) for place in PLACES}}


def _table5(lab: Laboratory) -> Result:
    methods = selective_methods(lab)
    made = dict(zip(methods, lab.answers(*methods.values()), strict=True))
    shares = place_shares(lab)
    columns = (
        Column("where", "contrast at"),
        Column("accuracy", lab.metric, "percent"),
        Column("difference", "Δ to greedy", "points"),
        Column("positions", "such positions", "percent"),
        Column("touched", "positions where it intervened", "percent"),
        Column("paper_accuracy", paper_heading("huginn", "gsm8k", "flex"), "percent"),
        Column("paper_positions", f"{paper_heading('huginn', 'gsm8k')}, positions", "percent"),
    )
    names = {"greedy": "nowhere (greedy)", "all": "all positions"}
    rows: list[tuple[Cell, ...]] = []
    for place, answers in made.items():
        difference = None if place == "greedy" else Estimate.difference(versus(made["greedy"], answers, lab.metric))
        theirs, their_positions = paper.SELECTIVE[place]
        told = f"{place} positions only" if place in PLACES else names[place]
        touched = answers.touched / answers.tokens if answers.tokens else None
        ours: tuple[Cell, ...] = (told, accuracy(answers, lab.metric), difference, shares[place], touched)
        rows.append((*ours, fraction(theirs), fraction(their_positions)))
    notes = (
        f"Amateur {lab.amateur}, strength {lab.strength:g}. Such positions: their share among the tokens of greedy's answers. "
        "Intervened: such positions with more than one plausible token, in the method's own answers; at all others the "
        "contrast cannot change the token.",
    )
    return Result(Table(columns, tuple(rows)), _concentrated(lab, made, shares), notes=notes)


def place_shares(lab: Laboratory) -> dict[str, Estimate | None]:
    """The share of each kind of position among the tokens of greedy's answers."""
    counts: dict[str, list[int]] = {place: [] for place in PLACES}
    lengths: list[int] = []
    for trace in greedy_traces(lab):
        hard = statistics.hard_tokens(trace)
        kinds = {"numeric": statistics.numeric_tokens(trace), "operator": statistics.operator_tokens(trace)}
        lengths.append(len(hard))
        for place in PLACES:
            first, _, second = place.partition(" ")
            mask = hard if first == "hard" else ~hard
            counts[place].append(int((mask & kinds[second]).sum() if second else mask.sum()))
    found: dict[str, Estimate | None] = {place: rate(np.array(each), np.array(lengths)) for place, each in counts.items()}
    return {"greedy": Estimate(0.0), "all": Estimate(1.0), **found}


def _concentrated(lab: Laboratory, made: dict[str, Answers], shares: dict[str, Estimate | None]) -> Finding:
    gains = {place: Estimate.difference(versus(made["greedy"], made[place], lab.metric)) for place in ("all", "hard", "easy")}
    between = Estimate.difference(versus(made["easy"], made["hard"], lab.metric))
    hard_share = shares["hard"]
    told = (
        f"Everywhere the contrast changes accuracy by {points(gains['all'])}, at hard positions alone "
        f"({100 * hard_share.value if hard_share else 0:.1f} % of all) by {points(gains['hard'])}, at easy positions alone by "
        f"{points(gains['easy'])}; hard over easy: {points(between)}."
    )
    return Finding("the gain comes mostly from the few hard positions", between.above(0), told)


TABLE4 = Element(
    "table4", "Table 4: the amateur's loop", _table4, lambda lab: (Wanted((GREEDY, *sweep_methods(lab).values())),)
)
TABLE5 = Element(
    "table5", "Table 5: selective contrast", _table5, lambda lab: (Wanted(tuple(selective_methods(lab).values())),)
)
