"""Tables 2 and 3: the methods beside each other, and early exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from loopcd.analysis.elements.element import fraction, gain, paper_heading, phrase, points, share, versus
from loopcd.analysis.laboratory import GREEDY, Laboratory, Wanted
from loopcd.analysis.result import Finding, Result, together, verdict_of
from loopcd.analysis.scaling import FEWEST_EXIT_LOOPS, PAPER_LOOPS, fewest_exit_loops
from loopcd.decoding.self_eval import label_ids
from loopcd.evaluation import paper
from loopcd.evaluation.evaluate import begin, default_folder, make_manifest
from loopcd.evaluation.plan import MethodSpec, Run, RunPlan
from loopcd.evaluation.runner import Outcome, run_all
from loopcd.evaluation.store import StoreError, open_store
from loopcd.evaluation.sweep import grid
from loopcd.evaluation.table import Cell, Column, Estimate, Table
from loopcd.evaluation.task import Split

SHOWN = {"greedy": "Greedy", "mti": "MTI", "selfeval": "Self-Eval", "noisecd": "NoiseCD", "loopcd": "LoopCD"}
BEYOND = {"loopguidance": "LoopGuidance"}  # rows that the paper does not have
GUIDANCE = "LoopGuidance is the method of arXiv 2610.02185, which that paper calls LoopCD too: a row beyond the paper's."
THRESHOLD = 0.03  # of early exit
BATCH, BATCHES = 16, 6
NOTE = (
    f"Speed: tokens per second relative to greedy, in batches of at most {BATCH} that all methods take turns on; the median "
    "over the batches, and the lowest and highest of them in place of an interval."
)


# -- Table 2


def runnable(lab: Laboratory) -> list[str]:
    """The methods that this model can be asked to run: Self-Eval needs two labels of one token each."""
    names = [*SHOWN, *BEYOND]
    try:
        label_ids(lab.engine.tokenizer)
    except ValueError:
        names.remove("selfeval")
    return names


def grids(lab: Laboratory) -> dict[str, list[MethodSpec]]:
    """The settings of each method that are tried; one, where nothing is tuned."""
    if lab.tunes:
        model = lab.engine.model
        return {name: grid(name, model.config.model_type, lab.loops, model.has_initial_state) for name in runnable(lab)}
    return {name: [lab.table2_loopcd() if name == "loopcd" else MethodSpec(name)] for name in runnable(lab)}


def _tried(lab: Laboratory) -> tuple[MethodSpec, ...]:
    return tuple(spec for specs in grids(lab).values() for spec in specs if len(specs) > 1)


def chosen(lab: Laboratory) -> dict[str, MethodSpec]:
    """Each method's best setting on the tuning items; of equals the first of the grid."""
    tried = _tried(lab)
    made = zip(tried, lab.answers(*tried, split="tuning") if tried else (), strict=True)
    right = {spec: sum(answers.right(lab.metric)) for spec, answers in made}
    return {name: max(specs, key=lambda spec: right.get(spec, 0)) for name, specs in grids(lab).items()}


def _split(lab: Laboratory) -> Split:
    return "report" if lab.tunes else "test"


def wanted_table2(lab: Laboratory) -> Sequence[Wanted]:
    single = Wanted(tuple(specs[0] for specs in grids(lab).values() if len(specs) == 1), split=_split(lab))
    return (Wanted(_tried(lab), split="tuning"), single) if lab.tunes else (single,)


def table2(lab: Laboratory) -> Result:
    settings, metrics = chosen(lab), lab.task().metrics
    made = dict(zip(settings, lab.answers(*settings.values(), split=_split(lab)), strict=True))
    speeds = relative_speeds(lab, settings)
    columns = [Column("method", "method"), Column("setting", "setting")]
    columns += [Column(metric, metric, "percent") for metric in metrics]
    columns += [Column("difference", f"Δ {lab.metric}", "points"), Column("wrong_to_right", "W→R", "count")]
    columns += [Column("right_to_wrong", "R→W", "count"), Column("p", "p", "number"), Column("speed", "speed", "times")]
    for family in paper.FAMILIES:
        for metric in metrics:
            told = paper.known_reading(lab.session.task, metric)[1]
            columns.append(Column(f"{family}_{metric}", paper_heading(family, lab.session.task, told), "percent"))
        columns.append(Column(f"{family}_speed", f"paper: {paper.NAMES[family]}, speed", "times"))
    rows = tuple(_row(lab, name, settings[name], made, speeds[name]) for name in settings)
    left_out = [f"{SHOWN[name]} cannot run: its labels are not single tokens here." for name in SHOWN if name not in settings]
    return Result(Table(tuple(columns), rows), _best(lab, made), notes=(_practice(lab), GUIDANCE, NOTE, *left_out))


def _practice(lab: Laboratory) -> str:
    """Where the settings come from."""
    if lab.tunes:
        return (
            f"Each method's setting was chosen on {len(lab.task(split='tuning').items)} tuning items, from the paper's grids "
            "carried over to this depth; the paper chooses on the reported items."
        )
    if lab.published is not None:
        return (
            "LoopCD has the paper's own setting for this benchmark, the best of its grid on these very items; the others have "
            "their defaults, since the paper does not say which of theirs was best."
        )
    return "Presets; nothing was tuned."


def _row(lab: Laboratory, name: str, spec: MethodSpec, made: dict[str, Outcome], speed: Estimate) -> tuple[Cell, ...]:
    metrics = lab.task().metrics
    cells: list[Cell] = [(SHOWN | BEYOND)[name], spec.label.partition(":")[2] or "–"]
    cells += [share(made[name].right(metric)) for metric in metrics]
    if name == "greedy":
        cells += [None, None, None, None, 1.0]
    else:
        compared = versus(made["greedy"], made[name], lab.metric)
        cells += [Estimate.difference(compared), compared.wrong_to_right, compared.right_to_wrong, compared.mcnemar_p, speed]
    for family in paper.FAMILIES:
        cells += [fraction(paper.main(family, name, lab.session.task, metric)) for metric in metrics]
        cells.append(paper.speed(family, name))
    return tuple(cells)


def _best(lab: Laboratory, made: dict[str, Outcome]) -> Finding:
    more = gain(made["greedy"], made["loopcd"], lab.metric)
    accuracies = {SHOWN[name]: share(made[name].right(lab.metric)).value for name in SHOWN if name in made}
    highest = max(accuracies.values())
    first = [name for name, value in accuracies.items() if value == highest]
    told = (
        f"LoopCD changes {lab.metric} accuracy by {points(more)} from greedy's {100 * accuracies['Greedy']:.2f} %; the highest "
        f"accuracy, {100 * highest:.2f} %, is that of {' and '.join(first)}."
    )
    claim = "LoopCD improves on greedy and is the best of the methods overall"
    return Finding(claim, together([more.above(0), verdict_of(first == ["LoopCD"])]), told)


# -- Table 3


def exit_methods(lab: Laboratory) -> dict[str, MethodSpec]:
    least = fewest_exit_loops(lab.loops, lab.amateur)
    return {
        "greedy": GREEDY,
        "loopcd": lab.table2_loopcd(),
        "exit": MethodSpec("greedy", (("exit_threshold", THRESHOLD),)),
        "exit+loopcd": lab.loopcd(exit_threshold=THRESHOLD, min_loops=least),
    }


def table3(lab: Laboratory) -> Result:
    methods = exit_methods(lab)
    made = dict(zip(methods, lab.answers(*methods.values()), strict=True))
    speeds = relative_speeds(lab, methods)
    names = {"greedy": "Greedy", "loopcd": "LoopCD", "exit": "early exit (EE)", "exit+loopcd": "EE + LoopCD"}
    rows: list[tuple[Cell, ...]] = []
    for name, answers in made.items():
        theirs = paper.EARLY_EXIT[name]
        difference, speed = (None, 1.0) if name == "greedy" else (gain(made["greedy"], answers, lab.metric), speeds[name])
        ours = (names[name], share(answers.right(lab.metric)), difference, answers.loops / answers.tokens, speed)
        rows.append((*ours, fraction(theirs["gsm8k"]), fraction(theirs["math500"]), theirs["speed"]))
    columns = (
        Column("method", "method"),
        Column("accuracy", lab.metric, "percent"),
        Column("difference", "Δ to greedy", "points"),
        Column("loops_per_token", "loops per token", "number"),
        Column("speed", "speed", "times"),
        Column("paper_gsm8k", "paper: Huginn-0125, GSM8K flex", "percent"),
        Column("paper_math500", "paper: Huginn-0125, MATH-500 flex", "percent"),
        Column("paper_speed", "paper: Huginn-0125, speed", "times"),
    )
    least = fewest_exit_loops(lab.loops, lab.amateur)
    notes = (
        f"Exit at threshold {THRESHOLD}. With LoopCD it leaves only after {least} of {lab.loops} loops (the paper: after "
        f"{FEWEST_EXIT_LOOPS} of {PAPER_LOOPS}; at least one more than the amateur), with the preset's amateur {lab.amateur}: "
        "the paper searches it anew on the reported items.",
        NOTE,
    )
    return Result(Table(columns, tuple(rows)), _worth(lab, made, speeds), notes=notes)


def _worth(lab: Laboratory, made: dict[str, Outcome], speeds: dict[str, Estimate]) -> Finding:
    more = gain(made["exit"], made["exit+loopcd"], lab.metric)
    faster, both = speeds["exit"], speeds["exit+loopcd"]
    run = made["exit"].loops / made["exit"].tokens / lab.loops
    told = (
        f"Early exit runs {100 * run:.0f} % of the loops at {phrase(faster, 1, 2, '×')} of greedy's speed; with LoopCD the "
        f"speed is {phrase(both, 1, 2, '×')}, and accuracy changes by {points(more)} from early exit alone."
    )
    claim = "early exit about doubles the speed (1.98×), and LoopCD on top of it keeps the speed and adds accuracy"
    return Finding(claim, together([verdict_of(run < 1), faster.above(1), both.above(1), more.above(0)]), told)


# -- speed beside greedy
#
# Methods are run by themselves here, taking turns batch by batch, so that they share what the machine does. Answers for other
# elements may have been made at any time, and their timings are not comparable. `loopcd bench` measures more thoroughly.


def relative_speeds(lab: Laboratory, methods: Mapping[str, MethodSpec]) -> dict[str, Estimate]:
    """By the names of `methods`, which hold greedy."""
    engine = replace(lab.engine, batch_size=min(BATCH, lab.engine.batch_size))
    items = min(len(lab.task().items), engine.batch_size * BATCHES)
    task = replace(lab.session, limit=items).make_task()
    plan = RunPlan(tuple(dict.fromkeys((GREEDY, *methods.values()))))
    manifest = make_manifest(task, engine, plan)
    folder = lab.cache / f"speed-{default_folder(manifest).name}"
    with open_store(folder, lab.cache) as store:
        begin(store, manifest)
        run_all(task, engine, plan, store, lab.tally.stage(f"speed of {', '.join(methods)}"))
        timed = [line for line in store.timings() if line["tokens"] and line["seconds"]]
    rates = {(line["run"], line["batch"]): line["tokens"] / line["seconds"] for line in timed}
    return {name: _relative(rates, Run(spec, None).slug, folder) for name, spec in methods.items()}


def _relative(rates: Mapping[tuple[str, int], float], run: str, folder: Path) -> Estimate:
    base = Run(GREEDY, None).slug
    ratios = [rate / rates[base, batch] for (name, batch), rate in rates.items() if name == run and (base, batch) in rates]
    if not ratios:
        raise StoreError(f"{folder}/timing.jsonl has lost the times of {run}: remove this folder, and run it again")
    return Estimate(median(ratios), *((min(ratios), max(ratios)) if len(ratios) > 1 else ()))  # one has no spread
