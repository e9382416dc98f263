"""Tables 4, 5, 9 and 10: LoopCD with other amateurs, at some positions only, on other benchmarks, under several seeds."""

from __future__ import annotations

from collections.abc import Sequence

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import counted, fraction, gain, paper_heading, points, share, versus
from loopcd.analysis.intervals import rate
from loopcd.analysis.laboratory import GREEDY, Laboratory, Wanted
from loopcd.analysis.result import Finding, Result, verdict_of
from loopcd.analysis.scaling import GOOD_DEPTH, PAPER_LOOPS, amateur_sweep, sweep_note
from loopcd.evaluation import paper
from loopcd.evaluation.plan import MethodSpec
from loopcd.evaluation.runner import Outcome
from loopcd.evaluation.statistics import compare, over_seeds
from loopcd.evaluation.table import Cell, Column, Estimate, Table, Verdict
from loopcd.evaluation.tasks import CODE_TASKS
from loopcd.tracing import LoopTrace

# -- Table 4


def sweep_methods(lab: Laboratory) -> dict[int, MethodSpec]:
    return {loop: lab.loopcd(amateur_loop=loop) for loop in amateur_sweep(lab.loops)}


def table4(lab: Laboratory) -> Result:
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
    theirs = [fraction(paper.main("huginn", "greedy", *reading)) for reading in (("gsm8k", "flex"), ("humaneval", "base"))]
    rows: list[tuple[Cell, ...]] = [("none (greedy)", None, share(greedy.right(lab.metric)), None, None, *theirs)]
    for loop, answers in made.items():
        ours = (loop, loop / lab.loops, share(answers.right(lab.metric)), gain(greedy, answers, lab.metric))
        rows.append((*ours, *_their_amateur(loop / lab.loops)))
    notes = (sweep_note(lab.loops), f"Strength {lab.strength:g}; the paper's is 0.3.")
    return Result(Table(columns, tuple(rows)), _where_best(lab, made), notes=notes)


def _their_amateur(depth: float) -> tuple[Cell, ...]:
    """The paper's amateur at the nearest share of the depth, if it has one within a sixteenth of it, and its figures."""
    nearest = min(paper.AMATEUR["gsm8k"], key=lambda their: abs(their / PAPER_LOOPS - depth))
    if abs(nearest / PAPER_LOOPS - depth) > 1 / 16:
        return None, None, None
    return nearest, *(fraction(figures[nearest]) for figures in paper.AMATEUR.values())


def _where_best(lab: Laboratory, made: dict[int, Outcome]) -> Finding:
    right = {loop: sum(answers.right(lab.metric)) for loop, answers in made.items()}
    best, worst = max(right, key=right.__getitem__), min(right, key=right.__getitem__)
    between = gain(made[worst], made[best], lab.metric)
    low, high = GOOD_DEPTH
    decided = between.above(0) == "holds"
    verdict: Verdict = verdict_of(low <= best / lab.loops <= high) if decided else "is undecided"
    told = "All amateurs are right equally often."
    if right[best] != right[worst]:
        told = (
            f"The best amateur is loop {best} of {lab.loops} ({100 * best / lab.loops:.0f} % of the depth), ahead of the "
            f"worst, loop {worst}, by {points(between)}."
        )
    return Finding(f"an amateur at {100 * low:.0f} to {100 * high:.0f} % of the depth works best", verdict, told)


# -- Table 5

PLACES = ("hard", "easy", "hard numeric", "easy numeric", "hard operator", "easy operator")


def selective_methods(lab: Laboratory) -> dict[str, MethodSpec]:
    return {"greedy": GREEDY, "all": lab.loopcd(), **{place: lab.loopcd(where=place) for place in PLACES}}


def table5(lab: Laboratory) -> Result:
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
        difference = None if place == "greedy" else gain(made["greedy"], answers, lab.metric)
        touched = answers.touched / answers.tokens if answers.tokens else None
        told = names.get(place, f"{place} positions only")
        ours = (told, share(answers.right(lab.metric)), difference, shares[place], touched)
        rows.append((*ours, *map(fraction, paper.SELECTIVE[place])))
    notes = (
        f"Amateur {lab.amateur}, strength {lab.strength:g}. Such positions: their share among the tokens of greedy's answers. "
        "Intervened: such positions with more than one plausible token, in the method's own answers; at all others the "
        "contrast cannot change the token.",
    )
    gains = {place: gain(made["greedy"], made[place], lab.metric) for place in ("all", "hard", "easy")}
    between = gain(made["easy"], made["hard"], lab.metric)
    told = (
        f"Everywhere the contrast changes accuracy by {points(gains['all'])}, at hard positions alone "
        f"({100 * shares['hard'].value if shares['hard'] else 0:.1f} % of all) by {points(gains['hard'])}, at easy positions "
        f"alone by {points(gains['easy'])}; hard over easy: {points(between)}."
    )
    finding = Finding("the gain comes mostly from the few hard positions", between.above(0), told)
    return Result(Table(columns, tuple(rows)), finding, notes=notes)


def place_shares(lab: Laboratory) -> dict[str, Estimate | None]:
    """The share of each kind of position among the tokens of greedy's answers."""

    def counts(trace: LoopTrace) -> list[int]:
        hard = statistics.hard_tokens(trace)
        kinds = {"": True, "numeric": statistics.numeric_tokens(trace), "operator": statistics.operator_tokens(trace)}
        sides = {"hard": hard, "easy": ~hard}
        parted = [place.partition(" ") for place in PLACES]
        return [len(trace), *((sides[side] & kinds[kind]).sum() for side, _, kind in parted)]

    tokens, *found = counted(lab, counts)
    shares = {place: rate(each, tokens) for place, each in zip(PLACES, found, strict=True)}
    return {"greedy": Estimate(0.0), "all": Estimate(1.0), **shares}


# -- Table 9


def table9(lab: Laboratory) -> Result:
    rows: list[tuple[Cell, ...]] = []
    gains: dict[str, Estimate] = {}
    for name in lab.benchmarks:
        greedy, contrasted = lab.answers(GREEDY, lab.loopcd(), task=name)
        for metric in lab.task(name).metrics:
            compared = versus(greedy, contrasted, metric)
            gains[f"{name} {metric}"] = Estimate.difference(compared)
            theirs: list[Cell] = [None] * 4
            if name in paper.SHOWN:
                theirs = [fraction(figure) for family in paper.FAMILIES for figure in paper.fixed(family, name, metric)]
            shares = (share(greedy.right(metric)), share(contrasted.right(metric)))
            rows.append((name, metric, *shares, gains[f"{name} {metric}"], compared.mcnemar_p, *theirs))
    columns = [Column("benchmark", "benchmark"), Column("metric", "metric"), Column("greedy", "greedy", "percent")]
    columns += [Column("loopcd", "LoopCD", "percent"), Column("difference", "Δ", "points"), Column("p", "p", "number")]
    for family in paper.FAMILIES:
        columns.append(Column(f"{family}_greedy", f"paper: {paper.NAMES[family]}, greedy", "percent"))
        columns.append(Column(f"{family}_loopcd", f"paper: {paper.NAMES[family]}, LoopCD", "percent"))
    notes = [f"Amateur {lab.amateur} of {lab.loops}, strength {lab.strength:g} on all of them."]
    ours = [name for name in lab.benchmarks if name not in paper.SHOWN]
    if ours:
        notes.append(f"{', '.join(ours)}: not in the paper; its figures stand beside its own benchmarks.")
    elif CODE_TASKS[0] not in lab.benchmarks:
        notes.append(f"{' and '.join(CODE_TASKS)} are left out: they run programs, which --allow-code-execution allows.")
    return Result(Table(tuple(columns), tuple(rows)), _everywhere(gains), notes=tuple(notes))


def _everywhere(gains: dict[str, Estimate]) -> Finding:
    better = [name for name, each in gains.items() if each.above(0) == "holds"]
    worse = [name for name, each in gains.items() if each.above(0) == "does not hold"]
    lower = [name for name, each in gains.items() if each.value < 0]
    verdict: Verdict = "does not hold" if worse else "is undecided" if lower or not better else "holds"
    told = (
        f"With one setting LoopCD scores at least as high as greedy on {len(gains) - len(lower)} of {len(gains)} readings; "
        f"beyond chance it is higher on {', '.join(better) or 'none'} and lower on {', '.join(worse) or 'none'}."
    )
    return Finding("with one setting LoopCD improves or matches greedy on every benchmark", verdict, told)


# -- Table 10

SEEDS = (0, 1, 2, 3)
HEAT = 0.7  # of sampling, for models whose seeds would draw nothing otherwise


def seeded_answers(lab: Laboratory) -> Sequence[Wanted]:
    heat = 0.0 if lab.engine.model.has_initial_state else HEAT
    return (Wanted((GREEDY, lab.loopcd()), seeds=SEEDS, temperature=heat),)


def table10(lab: Laboratory) -> Result:
    made = [answers.right(lab.metric) for wanted in seeded_answers(lab) for answers in lab.made(wanted)]
    before, after = made[: len(SEEDS)], made[len(SEEDS) :]
    more = Estimate.difference(compare(before, after))
    benchmark, reading = paper.known_reading(lab.session.task, lab.metric)
    columns = (
        Column("method", "method"),
        *(Column(f"seed{seed}", f"seed {seed}", "percent") for seed in SEEDS),
        Column("mean", f"mean {lab.metric}", "percent"),
        Column("difference", "Δ to greedy", "points"),
        Column("paper", f"paper: Huginn-0125, {paper.SHOWN[benchmark]} {reading}", "percent"),
    )
    rows: list[tuple[Cell, ...]] = []
    for name, shown, right, difference in (("greedy", "Greedy", before, None), ("loopcd", "LoopCD", after, more)):
        accuracies = [sum(row) / len(row) for row in right]
        theirs = None
        if known := paper.seeds(name, lab.session.task, lab.metric):
            mean, half = known
            theirs = Estimate(mean / 100, (mean - half) / 100, (mean + half) / 100)
        rows.append((shown, *accuracies, Estimate.of(over_seeds(accuracies)), difference, theirs))
    drawn = f"The seeds draw tokens at temperature {HEAT}: this model, unlike Huginn, has no initial state to draw."
    if lab.engine.model.has_initial_state:
        drawn = "The seeds draw the initial state, as in the paper; tokens are chosen greedily."
    notes = (f"{drawn} Means have Student's interval over the seeds, the difference a paired bootstrap over the items.",)
    told = f"Over {len(SEEDS)} seeds LoopCD changes the mean {lab.metric} accuracy by {points(more)}."
    finding = Finding("LoopCD improves the mean accuracy over four seeds", more.above(0), told)
    return Result(Table(columns, tuple(rows)), finding, notes=notes, settings={"seeds": list(SEEDS)})
