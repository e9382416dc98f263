"""Figures 2 to 5, Tables 6 and 7: how sure the model is of its answers and tokens, from loop to loop; which tokens are hard,
where, when their margin peaks, how often the contrast flips them, and how often late loops change their mind."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from scipy.stats import mannwhitneyu

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import counted, fraction, greedy_right, paper_heading, phrase, points
from loopcd.analysis.intervals import estimates, mean, rate, rate_difference, rate_ratio, ratio
from loopcd.analysis.laboratory import Laboratory
from loopcd.analysis.result import Band, Finding, Panel, Result, Series, above, together, verdict_of
from loopcd.analysis.scaling import PAPER_LOOPS, PEAK, scaled
from loopcd.decoding.selective import kind_operator
from loopcd.evaluation import paper
from loopcd.evaluation.table import Cell, Column, Estimate, Table, Verdict

BINS = 24
RISEN = 0.95  # of its peak: a curve that ends there counts as having risen to the end
TOP = 20
PLURALS = {"number": "numbers", "operator": "operators", "punctuation": "punctuation", "word": "words"}
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
Curves = dict[tuple[str, str], list[Estimate | None]]  # of the margin and the entropy, at easy and at hard tokens: by loop


def of_hard_and_easy(marked: np.ndarray, hard: np.ndarray) -> list[int]:
    """Marked hard tokens, hard tokens, marked easy tokens, easy tokens."""
    return [int(each.sum()) for each in (marked & hard, hard, marked & ~hard, ~hard)]


def in_right_and_wrong(
    found: np.ndarray, tokens: np.ndarray, right: np.ndarray
) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    """The share of what is found among the tokens of right and of wrong answers, and how much larger the latter is."""
    ours, others = (found * right, tokens * right), (found * ~right, tokens * ~right)
    return rate(*ours), rate(*others), rate_difference(*others, *ours)


# -- Figure 2 a


def fig2a(lab: Laboratory) -> Result:
    right = greedy_right(lab)
    entropies = np.array([statistics.trace_entropy(trace) for trace in lab.traces()])
    groups = {"right": right, "wrong": ~right}
    means = {name: mean(entropies * mask, mask) for name, mask in groups.items()}
    higher = rate_difference(entropies * ~right, ~right, entropies * right, right)
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


# -- Figure 2 b, c


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
    more = rate_difference(*sums["hard"][:, -1, 1:].T, *sums["easy"][:, -1, 1:].T)
    told = (
        f"The mean margin of hard tokens peaks at loop {peak} of {lab.loops} with {max(hard):.1f} and ends at {hard[-1]:.1f}, "
        f"that of easy tokens peaks at loop {easy_peak} with {max(easy):.1f} and ends at {easy[-1]:.1f}; after the last loop "
        f"the entropy of hard tokens minus that of easy ones is {phrase(more, 1, 2, ' nats')}."
    )
    rises = easy[-1] >= RISEN * max(easy)
    return Finding(claim, together([verdict_of(peak < lab.loops), verdict_of(rises), above(more)]), told)


# -- Figure 3


def token_class(text: str) -> str:
    """number, operator, punctuation (also line breaks and special tokens), or word.

    As the paper's authors count here, and only here: a number may have a minus and a decimal part, and $ is an operator.
    """
    if NUMBER.fullmatch(text.strip()):
        return "number"
    if kind_operator(text) or text.strip() == "$":
        return "operator"
    special = text.startswith("<") and text.endswith(">")
    return "word" if any(letter.isalnum() for letter in text) and not special else "punctuation"


def visible(text: str) -> str:
    """A token's text such that blanks can be seen."""
    return text.replace("\n", "⏎").replace("\t", "⇥") if text.strip() else repr(text)[1:-1]


def fig3(lab: Laboratory) -> Result:
    types: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    sums = []
    for trace in lab.traces():
        texts = [text.strip() or text for text in statistics.winner_texts(trace)]
        types.update(statistics.hard_token_types(trace))
        occurrences.update(texts)
        sums.append(of_hard_and_easy(np.array([token_class(text) != "word" for text in texts]), statistics.hard_tokens(trace)))
    first, total = types.most_common(TOP), sum(types.values())
    columns = (
        Column("rank", "rank", "count"),
        Column("token", "token"),
        Column("class", "class"),
        Column("hard", "hard tokens", "count"),
        Column("share", "share of all hard tokens", "percent"),
        Column("rate", "share of its occurrences that are hard", "percent"),
    )
    rows = tuple(
        (place, visible(text), token_class(text), count, count / total, count / occurrences[text])
        for place, (text, count) in enumerate(first, start=1)
    )
    names = tuple(visible(text) for text, _ in first)
    counts = {kind: tuple(float(count) if token_class(text) == kind else 0.0 for text, count in first) for kind in PLURALS}
    series = tuple(Series(kind, kind, names, each) for kind, each in counts.items() if any(each))
    panel = Panel("ranking", f"The {len(first)} most frequent hard tokens", "hard tokens", "", series)
    classes = Counter(token_class(text) for text in types.elements())
    parts = ", ".join(f"{plural} {100 * classes[kind] / max(1, total):.0f} %" for kind, plural in PLURALS.items())
    marked, hard, easy_marked, easy = np.array(sums).T
    told = (
        f"Of {total} hard tokens: {parts}. Numbers, operators and punctuation are {phrase(rate(marked, hard))} of the hard and "
        f"{phrase(rate(easy_marked, easy))} of the easy tokens."
    )
    claim = "hard tokens are often numbers, operators, punctuation and words that start a step"
    more = rate_difference(marked, hard, easy_marked, easy)
    return Result(Table(columns, rows), Finding(claim, above(more), told), (panel,))


# -- Figure 4


def fig4(lab: Laboratory) -> Result:
    right = greedy_right(lab)
    hard, tokens = counted(lab, lambda trace: [statistics.hard_tokens(trace).sum(), len(trace)])
    fine, wrong, more = in_right_and_wrong(hard, tokens, right)
    low, high = paper.HARD_SHARE
    theirs = f"{low:.0f}–{high:.0f} %"
    columns = (
        Column("answers", "answers"),
        Column("hard", "share of hard tokens", "percent"),
        Column("tokens", "tokens", "count"),
        Column("paper", "paper: Huginn-0125, GSM8K and HumanEval (roughly)"),
    )
    rows = (
        ("right", fine, int(tokens[right].sum()), theirs),
        ("wrong", wrong, int(tokens[~right].sum()), theirs),
        ("all", rate(hard, tokens), int(tokens.sum()), "10.7 %"),
    )
    series = tuple(
        Series.at(f"{kind} answers", kind, {float(place): each})
        for place, (kind, each) in enumerate((("right", fine), ("wrong", wrong)))
        if each is not None
    )
    band = Band(low / 100, high / 100, f"paper: roughly {theirs}", "y")
    told = (
        f"{phrase(wrong, digits=2)} of the tokens of wrong answers and {phrase(fine, digits=2)} of those "
        f"of right ones are hard{f', a difference of {points(more)}' if more else ''}."
    )
    finding = Finding("wrong answers hold a larger share of hard tokens", above(more), told)
    return Result(Table(columns, rows), finding, (Panel("bars", "Hard tokens", "", "share of tokens", series, (band,)),))


# -- Table 6


def table6(lab: Laboratory) -> Result:
    sums = counted(lab, lambda trace: of_hard_and_easy(statistics.margin_flips(trace), statistics.hard_tokens(trace)))
    hard_flips, hard, easy_flips, easy = sums
    hard_rate, easy_rate, times = rate(hard_flips, hard), rate(easy_flips, easy), rate_ratio(*sums)
    theirs = paper.MARGIN_FLIPS
    columns = (
        Column("tokens", "tokens"),
        Column("flipped", "margin-flipped", "percent"),
        Column("count", "tokens of that kind", "count"),
        Column("ratio", "ratio hard : easy", "times"),
        Column("paper", paper_heading("huginn", "gsm8k"), "percent"),
        Column("paper_ratio", "paper: ratio", "times"),
    )
    rows = (
        ("easy", easy_rate, int(easy.sum()), None, fraction(theirs["easy"]), None),
        ("hard", hard_rate, int(hard.sum()), times, fraction(theirs["hard"]), theirs["ratio"]),
    )
    told = (
        f"The contrast flips {phrase(hard_rate, digits=2)} of the hard and {phrase(easy_rate, digits=2)} of the easy "
        f"tokens{f', a ratio of {phrase(times, 1, 1, str())}' if times else ''}."
    )
    notes = (f"z_{lab.loops} − {lab.strength:g} · z_{lab.amateur} over the whole vocabulary, on greedy's answers.",)
    claim = "the contrast flips hard tokens many times as often as easy ones (10.7 times)"
    return Result(Table(columns, rows), Finding(claim, above(rate_difference(*sums)), told), notes=notes)


# -- Figure 5


def fig5(lab: Laboratory) -> Result:
    peaks, means = [], []  # of hard and of all tokens: [answers, 2, loops] at each loop; [answers, 4] the sum and the number
    for trace in lab.traces():
        hard, peak = statistics.hard_tokens(trace), statistics.peak_loop(trace)
        peaks.append([np.bincount(each, minlength=lab.loops + 1)[1:] for each in (peak[hard], peak)])
        means.append([peak[hard].sum(), hard.sum(), peak.sum(), len(peak)])
    columns = np.array(means, dtype=float)
    shares: dict[str, list[Estimate | None]] = {}
    for place, kind in enumerate(("hard", "all")):
        counts = np.array([each[place] for each in peaks], dtype=float)
        tokens = np.broadcast_to(columns[:, [2 * place + 1]], counts.shape)
        shares[kind] = estimates(np.stack([counts, tokens], axis=-1), ratio)
    table = Table(
        (
            Column("loop", "peak at loop", "count"),
            Column("hard", "share of hard tokens", "percent"),
            Column("all", "share of all tokens", "percent"),
        ),
        tuple((loop + 1, shares["hard"][loop], shares["all"][loop]) for loop in range(lab.loops)),
    )
    series = [Series.by_loop(f"{kind} tokens", kind, found) for kind, found in shares.items()]
    first, last = (scaled(loop, lab.loops) for loop in PEAK)
    here = "" if lab.loops == PAPER_LOOPS else f", here {first}–{last} of {lab.loops}"
    bands = (Band(first - 0.5, last + 0.5, f"paper: hard tokens peak at {PEAK[0]}–{PEAK[1]} of {PAPER_LOOPS}{here}"),)
    panel = Panel("groups", "Loop of the peak margin", "loop", "share of tokens", tuple(filter(None, series)), bands)
    later = rate_difference(*columns[:, [2, 3, 0, 1]].T)
    claim = f"hard tokens peak early, around the amateur's loop (loops {PEAK[0]} to {PEAK[1]} of {PAPER_LOOPS}), others later"
    hard_shares = [each.value if each else 0.0 for each in shares["hard"]]
    if later is None or not any(hard_shares):
        return Result(table, Finding(claim, "is undecided", "There are no hard tokens here."), (panel,))
    mode, within = int(np.argmax(hard_shares)) + 1, sum(hard_shares[first - 1 : last])
    told = (
        f"Hard tokens peak most often at loop {mode} of {lab.loops} (the amateur is {lab.amateur}), {100 * within:.0f} % of "
        f"them at loops {first} to {last}; all tokens peak {phrase(later, 1, 2, ' loops')} later on average."
    )
    verdict = together([verdict_of(first <= mode <= last), later.above(0)])
    return Result(table, Finding(claim, verdict, told), (panel,))


# -- Table 7


def table7(lab: Laboratory) -> Result:
    kinds = {"early overconfidence": statistics.early_overconfident, "Late-Flip": statistics.late_flips}
    right = greedy_right(lab)
    tokens, *counts = counted(lab, lambda trace: [len(trace), *(marked(trace).sum() for marked in kinds.values())])
    rows: list[tuple[Cell, ...]] = []
    parts: list[str] = []
    more: list[Verdict] = []
    for kind, found in zip(kinds, counts, strict=True):
        fine, wrong, difference = in_right_and_wrong(found, tokens, right)
        rows.append((kind, fine, wrong, difference, *map(fraction, paper.FREQUENCIES[kind])))
        told = f"{phrase(wrong, digits=2)} of the tokens of wrong and {phrase(fine, digits=2)} of right answers"
        parts.append(f"{kind} is found at {told}")
        more.append(above(difference))
    early, late = counts
    more.append(above(rate_difference(early, tokens, late, tokens)))
    columns = (
        Column("type", "type"),
        Column("right", "right answers", "percent"),
        Column("wrong", "wrong answers", "percent"),
        Column("difference", "wrong − right", "points"),
        Column("paper_right", "paper: Huginn-0125, GSM8K, right", "percent"),
        Column("paper_wrong", "paper: Huginn-0125, GSM8K, wrong", "percent"),
    )
    note = (
        f"Shares of the tokens. Late-Flip: at least once in loops {lab.loops // 2 + 1} to {lab.loops} the winner is not first. "
        "Early overconfidence: hard, and no Late-Flip."
    )
    claim = "both are more frequent in wrong answers, and Late-Flips are the rarer of the two"
    told = "; ".join(parts)
    finding = Finding(claim, together(more), f"{told[0].upper()}{told[1:]}.")
    return Result(Table(columns, tuple(rows)), finding, notes=(note,))
