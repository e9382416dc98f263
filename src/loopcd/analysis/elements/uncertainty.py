"""Figure 2: how sure the model is, in right and wrong answers (a), and from loop to loop at easy and hard tokens (b, c)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import Element, phrase
from loopcd.analysis.intervals import estimate, estimates, mean
from loopcd.analysis.laboratory import GREEDY, Laboratory
from loopcd.analysis.result import Finding, Panel, Result, Series, above, together, verdict_of
from loopcd.analysis.traced import greedy_traces
from loopcd.evaluation.table import Column, Estimate, Table, Verdict
from loopcd.tracing import LoopTrace

BINS = 24
RISEN = 0.95  # of its peak: a curve that ends there counts as having risen to the end


def graded(lab: Laboratory, metric: str | None = None) -> Iterator[tuple[LoopTrace, bool]]:
    """Traces of greedy's answers, each with whether the answer is right."""
    (greedy,) = lab.answers(GREEDY)
    yield from zip(greedy_traces(lab), greedy.right(metric or lab.metric), strict=True)


# -- (a)


def _fig2a(lab: Laboratory) -> Result:
    found = [(statistics.trace_entropy(trace), right) for trace, right in graded(lab)]
    entropies, right = np.array([each for each, _ in found]), np.array([each for _, each in found])
    means = {name: mean(entropies * mask, mask) for name, mask in (("right", right), ("wrong", ~right))}
    columns = [entropies * ~right, ~right, entropies * right, right]
    higher = estimate(columns, lambda sums: sums[..., 0] / sums[..., 1] - sums[..., 2] / sums[..., 3])
    table = Table(
        (
            Column("answers", "answers"),
            Column("count", "count", "count"),
            Column("mean", "mean trace entropy (nats)", "number"),
            Column("median", "median", "number"),
        ),
        (
            ("right", int(right.sum()), means["right"], _median(entropies[right])),
            ("wrong", int((~right).sum()), means["wrong"], _median(entropies[~right])),
            ("wrong − right", None, higher, None),
        ),
    )
    likelier = _chance_higher(entropies[~right], entropies[right])
    told = (
        f"The mean trace entropy is {phrase(means['wrong'], 1, 3, ' nats')} for wrong and "
        f"{phrase(means['right'], 1, 3, ' nats')} for right answers; a wrong answer's is the higher one in "
        f"{'no' if likelier is None else f'{100 * likelier:.0f} %'} of the pairs."
    )
    finding = Finding("wrong answers have a higher trace entropy", above(higher), told)
    panel = Panel("steps", "Trace entropy", "trace entropy (nats)", "share of the answers", _histograms(entropies, right))
    note = "The paper's figure is a histogram on GSM8K; its text gives no numbers. The last bin holds all that is larger."
    return Result(table, finding, (panel,), notes=(note,))


def _histograms(entropies: np.ndarray, right: np.ndarray) -> tuple[Series, ...]:
    highest = float(np.quantile(entropies, 0.99)) if len(entropies) else 0.0
    edges = np.linspace(0, highest or 1.0, BINS + 1)
    made = []
    for label, role, mask in (("right answers", "right", right), ("wrong answers", "wrong", ~right)):
        counts = np.histogram(np.minimum(entropies[mask], edges[-1]), edges)[0]
        shares = counts / max(1, counts.sum())
        made.append(Series(label, role, tuple(edges[:-1].tolist()), tuple(shares.tolist())))
    return tuple(made)


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _chance_higher(ones: np.ndarray, others: np.ndarray) -> float | None:
    """How often one of the first is larger than one of the second, ties counting half."""
    if not len(ones) or not len(others):
        return None
    ordered = np.sort(others)
    below, upto = np.searchsorted(ordered, ones, "left"), np.searchsorted(ordered, ones, "right")
    return float((below + upto).sum() / 2 / len(ones) / len(others))


# -- (b, c)


def _fig2bc(lab: Laboratory) -> Result:
    sums = _sums(lab)  # [answers, loops, 6]: margin, entropy and count of easy, then of hard tokens
    curves = {
        (what, kind): estimates(sums[..., [first + offset, first + 2]], lambda s: s[..., 0] / s[..., 1])
        for kind, first in (("easy", 0), ("hard", 3))
        for offset, what in ((0, "margin"), (1, "entropy"))
    }
    table = Table(
        (
            Column("loop", "loop", "count"),
            Column("margin_easy", "margin, easy", "number"),
            Column("margin_hard", "margin, hard", "number"),
            Column("entropy_easy", "entropy, easy", "number"),
            Column("entropy_hard", "entropy, hard", "number"),
        ),
        tuple(
            (
                loop + 1,
                *(curves[what, kind][loop] for what in ("margin", "entropy") for kind in ("easy", "hard")),
            )
            for loop in range(lab.loops)
        ),
    )
    panels = (
        _panel("(b) Margin of the last loop's winner", "logit margin", {k: v for k, v in curves.items() if k[0] == "margin"}),
        _panel("(c) Token entropy", "entropy (nats)", {k: v for k, v in curves.items() if k[0] == "entropy"}),
    )
    hard, easy = int(sums[:, -1, 5].sum()), int(sums[:, -1, 2].sum())
    notes = (
        f"{hard} hard and {easy} easy tokens. Hard means that the margin has fallen by 1.5 or more from its peak, so that a "
        "fall of the hard curve is partly by definition; where it peaks, and the entropy, are not.",
    )
    return Result(table, _dynamics(lab, curves, sums), panels, notes=notes)


def _sums(lab: Laboratory) -> np.ndarray:
    made = []
    for trace in greedy_traces(lab):
        hard = statistics.hard_tokens(trace)
        parts = []
        for mask in (~hard, hard):
            parts += [trace.margin[mask].sum(axis=0), trace.entropy[mask].sum(axis=0), np.full(trace.num_loops, mask.sum())]
        made.append(np.stack(parts, axis=-1))
    return np.array(made, dtype=float)


def _panel(title: str, label: str, curves: dict[tuple[str, str], list[Estimate | None]]) -> Panel:
    series = (Series.by_loop(f"{kind} tokens", kind, found) for (_, kind), found in curves.items())
    return Panel("lines", title, "loop", label, tuple(filter(None, series)))


def _dynamics(lab: Laboratory, curves: dict[tuple[str, str], list[Estimate | None]], sums: np.ndarray) -> Finding:
    claim = "the margin of easy tokens rises to the end, while that of hard tokens peaks and falls and their entropy stays high"
    margins = {kind: [each.value for each in curves["margin", kind] if each is not None] for kind in ("easy", "hard")}
    if not margins["hard"] or not margins["easy"]:
        return Finding(claim, "is undecided", f"There are {'no hard' if not margins['hard'] else 'only hard'} tokens here.")
    peaks = {kind: int(np.argmax(values)) + 1 for kind, values in margins.items()}
    more = estimates(sums[:, -1:, [4, 5, 1, 2]], lambda s: s[..., 0] / s[..., 1] - s[..., 2] / s[..., 3])[0]
    rises = margins["easy"][-1] >= RISEN * max(margins["easy"])
    told = (
        f"The mean margin of hard tokens peaks at loop {peaks['hard']} of {lab.loops} with {max(margins['hard']):.1f} and "
        f"ends at {margins['hard'][-1]:.1f}, that of easy tokens peaks at loop {peaks['easy']} with "
        f"{max(margins['easy']):.1f} and ends at {margins['easy'][-1]:.1f}; after the last loop the entropy of hard tokens "
        f"minus that of easy ones is {phrase(more, 1, 2, ' nats')}."
    )
    higher: Verdict = above(more)
    return Finding(claim, together([verdict_of(peaks["hard"] < lab.loops), verdict_of(rises), higher]), told)


FIG2A = Element("fig2a", "Figure 2a: trace entropy of right and wrong answers", _fig2a)
FIG2BC = Element("fig2bc", "Figure 2b, c: margin and entropy from loop to loop", _fig2bc)
