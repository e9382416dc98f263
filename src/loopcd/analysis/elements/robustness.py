"""Tables 9 and 10: one setting for all benchmarks, and several seeds."""

from __future__ import annotations

from collections.abc import Sequence

from loopcd.analysis.elements.element import Element, accuracy, fraction, points, versus
from loopcd.analysis.laboratory import GREEDY, Laboratory, Wanted
from loopcd.analysis.result import Finding, Result
from loopcd.evaluation import paper
from loopcd.evaluation.statistics import compare, over_seeds
from loopcd.evaluation.table import Cell, Column, Estimate, Table, Verdict

SEEDS = (0, 1, 2, 3)
HEAT = 0.7  # of sampling, for models whose seeds would draw nothing otherwise


# -- Table 9


def _wanted_table9(lab: Laboratory) -> Sequence[Wanted]:
    return tuple(Wanted((GREEDY, lab.loopcd()), task=_name(lab, task)) for task in lab.benchmarks)


def _name(lab: Laboratory, task: str) -> str | None:
    """The laboratory's own task has no name there, so that its answers are those of other elements."""
    return None if task == lab.session.task else task


def _table9(lab: Laboratory) -> Result:
    rows: list[tuple[Cell, ...]] = []
    gains: dict[str, Estimate] = {}
    for name in lab.benchmarks:
        greedy, contrasted = lab.answers(GREEDY, lab.loopcd(), task=_name(lab, name))
        for metric in lab.task(_name(lab, name)).metrics:
            compared = versus(greedy, contrasted, metric)
            gain = Estimate.difference(compared)
            gains[f"{name} {metric}"] = gain
            shares = (accuracy(greedy, metric), accuracy(contrasted, metric))
            rows.append((name, metric, *shares, gain, compared.mcnemar_p, *_theirs(name, metric)))
    columns = [Column("benchmark", "benchmark"), Column("metric", "metric"), Column("greedy", "greedy", "percent")]
    columns += [Column("loopcd", "LoopCD", "percent"), Column("difference", "Δ", "points"), Column("p", "p", "number")]
    for family in paper.FAMILIES:
        columns.append(Column(f"{family}_greedy", f"paper: {paper.NAMES[family]}, greedy", "percent"))
        columns.append(Column(f"{family}_loopcd", f"paper: {paper.NAMES[family]}, LoopCD", "percent"))
    ours = [name for name in lab.benchmarks if name not in paper.SHOWN]
    notes = [f"Amateur {lab.amateur} of {lab.loops}, strength {lab.strength:g} on all of them."]
    if ours:
        notes.append(f"{', '.join(ours)}: not in the paper; its figures stand beside its own benchmarks.")
    return Result(Table(tuple(columns), tuple(rows)), _everywhere(gains), notes=tuple(notes))


def _theirs(name: str, metric: str) -> tuple[Cell, ...]:
    if name not in paper.SHOWN:
        return (None,) * 4
    return tuple(fraction(figure) for family in paper.FAMILIES for figure in paper.fixed(family, name, metric))


def _everywhere(gains: dict[str, Estimate]) -> Finding:
    better = [name for name, gain in gains.items() if gain.above(0) == "holds"]
    worse = [name for name, gain in gains.items() if gain.above(0) == "does not hold"]
    lower = [name for name, gain in gains.items() if gain.value < 0]
    verdict: Verdict = "does not hold" if worse else "is undecided" if lower or not better else "holds"
    told = (
        f"With one setting LoopCD scores at least as high as greedy on {len(gains) - len(lower)} of {len(gains)} readings; "
        f"beyond chance it is higher on {_listed(better)} and lower on {_listed(worse)}."
    )
    return Finding("with one setting LoopCD improves or matches greedy on every benchmark", verdict, told)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


# -- Table 10


def seeded_answers(lab: Laboratory) -> Wanted:
    heat = 0.0 if lab.engine.model.has_initial_state else HEAT
    return Wanted((GREEDY, lab.loopcd()), seeds=SEEDS, temperature=heat)


def _table10(lab: Laboratory) -> Result:
    wanted = seeded_answers(lab)
    made = lab.answers(*wanted.methods, seeds=SEEDS, temperature=wanted.temperature)
    by_method = {"greedy": made[: len(SEEDS)], "loopcd": made[len(SEEDS) :]}
    columns = [Column("method", "method")]
    columns += [Column(f"seed{seed}", f"seed {seed}", "percent") for seed in SEEDS]
    columns += [Column("mean", f"mean {lab.metric}", "percent"), Column("difference", "Δ to greedy", "points")]
    columns.append(Column("paper", f"paper: Huginn-0125, {_paper_reading(lab)}", "percent"))
    right = {name: [answers.right(lab.metric) for answers in each] for name, each in by_method.items()}
    gain = Estimate.difference(compare(right["greedy"], right["loopcd"]))
    rows: list[tuple[Cell, ...]] = []
    for name, each in right.items():
        accuracies = [sum(row) / len(row) for row in each]
        theirs = paper.seeds(name, lab.session.task, lab.metric)
        told = None if theirs is None else _interval(*theirs)
        shown = {"greedy": "Greedy", "loopcd": "LoopCD"}[name]
        rows.append((shown, *accuracies, Estimate.of(over_seeds(accuracies)), gain if name == "loopcd" else None, told))
    if lab.engine.model.has_initial_state:
        drawn = "The seeds draw the initial state, as in the paper; tokens are chosen greedily."
    else:
        drawn = f"The seeds draw tokens at temperature {HEAT}: this model, unlike Huginn, has no initial state to draw."
    notes = (f"{drawn} Means have Student's interval over the seeds, the difference a paired bootstrap over the items.",)
    found = f"Over {len(SEEDS)} seeds LoopCD changes the mean {lab.metric} accuracy by {points(gain)}."
    finding = Finding("LoopCD improves the mean accuracy over four seeds", gain.above(0), found)
    return Result(Table(tuple(columns), tuple(rows)), finding, notes=notes, settings={"seeds": list(SEEDS)})


def _paper_reading(lab: Laboratory) -> str:
    benchmark, reading = paper.known_reading(lab.session.task, lab.metric)
    return f"{paper.SHOWN[benchmark]} {reading}"


def _interval(mean: float, half: float) -> Estimate:
    return Estimate(mean / 100, (mean - half) / 100, (mean + half) / 100)


TABLE9 = Element("table9", "Table 9: one setting for all benchmarks", _table9, _wanted_table9)
TABLE10 = Element("table10", "Table 10: four seeds", _table10, lambda lab: (seeded_answers(lab),))
