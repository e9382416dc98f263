"""Figure 2: how sure the model is, in right and wrong answers (a), and from loop to loop at easy and hard tokens (b, c)."""

from __future__ import annotations

import numpy as np
from scipy.stats import mannwhitneyu

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import greedy_right, phrase
from loopcd.analysis.intervals import estimate, estimates, mean, ratio, ratio_difference
from loopcd.analysis.laboratory import Laboratory
from loopcd.analysis.result import Finding, Panel, Result, Series, above, together, verdict_of
from loopcd.evaluation.table import Column, Estimate, Table

BINS = 24
RISEN = 0.95  # of its peak: a curve that ends there counts as having risen to the end


def fig2a(lab: Laboratory) -> Result:
    right = greedy_right(lab)
    entropies = np.array([statistics.trace_entropy(trace) for trace in lab.traces()])
    groups = {"right": right, "wrong": ~right}
    means = {name: mean(entropies * mask, mask) for name, mask in groups.items()}
    higher = estimate([entropies * ~right, ~right, entropies * right, right], ratio_difference)
    columns = (
        Column("answers", "answers"),
        Column("count", "count", "count"),
        Column("mean", "mean trace entropy (nats)", "number"),
        Column("median", "median", "number"),
    )
    rows = [
        (name, int(mask.sum()), means[name], float(np.median(entropies[mask])) if mask.any() else None)
        for name, mask in groups.items()
    ]
    likelier = "no"
    if right.any() and not right.all():
        pairs = right.sum() * (~right).sum()
        likelier = f"{100 * mannwhitneyu(entropies[~right], entropies[right]).statistic / pairs:.0f} %"
    told = (
        f"The mean trace entropy is {phrase(means['wrong'], 1, 3, ' nats')} for wrong and "
        f"{phrase(means['right'], 1, 3, ' nats')} for right answers; a wrong answer's is the higher one in "
        f"{likelier} of the pairs."
    )
    finding = Finding("wrong answers have a higher trace entropy", above(higher), told)
    edges = np.linspace(0, float(np.quantile(entropies, 0.99)) or 1.0, BINS + 1)
    series = []
    for name, mask in groups.items():
        counts = np.histogram(np.minimum(entropies[mask], edges[-1]), edges)[0]
        shares = counts / max(1, counts.sum())
        series.append(Series(f"{name} answers", name, tuple(edges[:-1].tolist()), tuple(shares.tolist())))
    panel = Panel("steps", "Trace entropy", "trace entropy (nats)", "share of the answers", tuple(series))
    note = "The paper's figure is a histogram on GSM8K; its text gives no numbers. The last bin holds all that is larger."
    return Result(Table(columns, (*rows, ("wrong − right", None, higher, None))), finding, (panel,), notes=(note,))


# -- (b, c)

Curves = dict[tuple[str, str], list[Estimate | None]]  # of the margin and the entropy, at easy and at hard tokens: by loop


def fig2bc(lab: Laboratory) -> Result:
    sums = _sums(lab)
    curves: Curves = {
        (what, kind): estimates(sums[kind][..., [place, 2]], ratio)
        for place, what in enumerate(("margin", "entropy"))
        for kind in ("easy", "hard")
    }
    columns = [Column(f"{what}_{kind}", f"{what}, {kind}", "number") for what, kind in curves]
    rows = tuple((loop + 1, *(curve[loop] for curve in curves.values())) for loop in range(lab.loops))
    panels = []
    for what, title, label in (
        ("margin", "(b) Margin of the last loop's winner", "logit margin"),
        ("entropy", "(c) Token entropy", "entropy (nats)"),
    ):
        series = [Series.by_loop(f"{kind} tokens", kind, curves[what, kind]) for kind in ("easy", "hard")]
        panels.append(Panel("lines", title, "loop", label, tuple(filter(None, series))))
    hard, easy = (int(sums[kind][:, -1, 2].sum()) for kind in ("hard", "easy"))
    note = (
        f"{hard} hard and {easy} easy tokens. Hard means that the margin has fallen by 1.5 or more from its peak, so that a "
        "fall of the hard curve is partly by definition; where it peaks, and the entropy, are not."
    )
    table = Table((Column("loop", "loop", "count"), *columns), rows)
    return Result(table, _dynamics(lab, curves, sums), tuple(panels), notes=(note,))


def _sums(lab: Laboratory) -> dict[str, np.ndarray]:
    """Over the easy and over the hard tokens, each [answers, loops, 3]: of the margin, of the entropy, their number."""
    made: dict[str, list[np.ndarray]] = {"easy": [], "hard": []}
    for trace in lab.traces():
        hard = statistics.hard_tokens(trace)
        for kind, mask in (("easy", ~hard), ("hard", hard)):
            parts = [trace.margin[mask].sum(axis=0), trace.entropy[mask].sum(axis=0), np.full(trace.num_loops, mask.sum())]
            made[kind].append(np.stack(parts, axis=-1))
    return {kind: np.array(each, dtype=float) for kind, each in made.items()}


def _dynamics(lab: Laboratory, curves: Curves, sums: dict[str, np.ndarray]) -> Finding:
    claim = "the margin of easy tokens rises to the end, while that of hard tokens peaks and falls and their entropy stays high"
    hard, easy = ([each.value for each in curves["margin", kind] if each is not None] for kind in ("hard", "easy"))
    if not hard or not easy:
        return Finding(claim, "is undecided", f"There are {'only' if hard else 'no'} hard tokens here.")
    peak, easy_peak = (int(np.argmax(values)) + 1 for values in (hard, easy))
    more = estimate([*sums["hard"][:, -1, 1:].T, *sums["easy"][:, -1, 1:].T], ratio_difference)
    told = (
        f"The mean margin of hard tokens peaks at loop {peak} of {lab.loops} with {max(hard):.1f} and ends at {hard[-1]:.1f}, "
        f"that of easy tokens peaks at loop {easy_peak} with {max(easy):.1f} and ends at {easy[-1]:.1f}; after the last loop "
        f"the entropy of hard tokens minus that of easy ones is {phrase(more, 1, 2, ' nats')}."
    )
    rises = easy[-1] >= RISEN * max(easy)
    return Finding(claim, together([verdict_of(peak < lab.loops), verdict_of(rises), above(more)]), told)
