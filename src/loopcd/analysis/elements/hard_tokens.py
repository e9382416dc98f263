"""Figures 3, 4, 5 and Table 6: which tokens are hard, where, when their margin peaks, and how often the contrast flips them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import Element, fraction, paper_heading, phrase, points
from loopcd.analysis.elements.uncertainty import graded
from loopcd.analysis.intervals import estimate, estimates, rate, rate_difference, rate_ratio
from loopcd.analysis.laboratory import Laboratory
from loopcd.analysis.result import Band, Finding, Panel, Result, Series, above, together, verdict_of
from loopcd.analysis.scaling import PAPER_LOOPS, PEAK, scaled
from loopcd.analysis.traced import greedy_traces
from loopcd.decoding.selective import kind_operator
from loopcd.evaluation import paper
from loopcd.evaluation.table import Column, Table

TOP = 20
PLURALS = {"number": "numbers", "operator": "operators", "punctuation": "punctuation", "word": "words"}
CLASSES = tuple(PLURALS)
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


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


def _fig3(lab: Laboratory) -> Result:
    types: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    sums = []  # of an answer: marked hard tokens, hard tokens, marked easy tokens, easy tokens
    for trace in greedy_traces(lab):
        hard = statistics.hard_tokens(trace)
        texts = [text.strip() or text for text in statistics.winner_texts(trace)]
        types.update(statistics.hard_token_types(trace))
        occurrences.update(texts)
        marked = np.array([token_class(text) != "word" for text in texts])
        sums.append([(marked & hard).sum(), hard.sum(), (marked & ~hard).sum(), (~hard).sum()])
    first, total = types.most_common(TOP), sum(types.values())
    table = Table(
        (
            Column("rank", "rank", "count"),
            Column("token", "token"),
            Column("class", "class"),
            Column("hard", "hard tokens", "count"),
            Column("share", "share of all hard tokens", "percent"),
            Column("rate", "share of its occurrences that are hard", "percent"),
        ),
        tuple(
            (place, visible(text), token_class(text), count, count / total, count / occurrences[text])
            for place, (text, count) in enumerate(first, start=1)
        ),
    )
    names = tuple(visible(text) for text, _ in first)
    series = tuple(
        Series(kind, kind, names, tuple(float(count) if token_class(text) == kind else 0.0 for text, count in first))
        for kind in CLASSES
        if any(token_class(text) == kind for text, _ in first)
    )
    panel = Panel("ranking", f"The {len(first)} most frequent hard tokens", "hard tokens", "", series)
    more = rate_difference(*np.array(sums, dtype=float).T)
    classes = Counter(token_class(text) for text in types.elements())
    parts = ", ".join(f"{PLURALS[kind]} {100 * classes[kind] / max(1, total):.0f} %" for kind in CLASSES)
    marked, hard, easy_marked, easy = np.array(sums, dtype=float).T
    told = (
        f"Of {total} hard tokens: {parts}. Numbers, operators and punctuation are {phrase(rate(marked, hard))} of the hard and "
        f"{phrase(rate(easy_marked, easy))} of the easy tokens."
    )
    claim = "hard tokens are often numbers, operators, punctuation and words that start a step"
    return Result(table, Finding(claim, above(more), told), (panel,))


# -- Figure 4


def _fig4(lab: Laboratory) -> Result:
    counts = [(statistics.hard_tokens(trace), right) for trace, right in graded(lab)]
    hard = np.array([mask.sum() for mask, _ in counts], dtype=float)
    tokens, right = np.array([len(mask) for mask, _ in counts]), np.array([each for _, each in counts])
    shares = {
        "right": rate(hard * right, tokens * right),
        "wrong": rate(hard * ~right, tokens * ~right),
        "all": rate(hard, tokens),
    }
    more = rate_difference(hard * ~right, tokens * ~right, hard * right, tokens * right)
    low, high = paper.HARD_SHARE
    theirs = f"{low:.0f}–{high:.0f} %"
    table = Table(
        (
            Column("answers", "answers"),
            Column("hard", "share of hard tokens", "percent"),
            Column("tokens", "tokens", "count"),
            Column("paper", "paper: Huginn-0125, GSM8K and HumanEval (roughly)"),
        ),
        (
            ("right", shares["right"], int((tokens * right).sum()), theirs),
            ("wrong", shares["wrong"], int((tokens * ~right).sum()), theirs),
            ("all", shares["all"], int(tokens.sum()), "10.7 %"),
        ),
    )
    series = tuple(
        Series(f"{kind} answers", kind, (float(place),), (each.value,), (each.low or 0.0,), (each.high or each.value,))
        for place, kind in enumerate(("right", "wrong"))
        if (each := shares[kind]) is not None
    )
    panel = Panel(
        "bars", "Hard tokens", "", "share of tokens", series, (Band(low / 100, high / 100, f"paper: roughly {theirs}", "y"),)
    )
    told = (
        f"{phrase(shares['wrong'], digits=2)} of the tokens of wrong answers and {phrase(shares['right'], digits=2)} of those "
        f"of right ones are hard{f', a difference of {points(more)}' if more else ''}."
    )
    claim = "wrong answers hold a larger share of hard tokens"
    return Result(table, Finding(claim, above(more), told), (panel,))


# -- Table 6


def _table6(lab: Laboratory) -> Result:
    counts = []
    for trace in greedy_traces(lab):
        hard, flipped = statistics.hard_tokens(trace), statistics.margin_flips(trace)
        counts.append([(flipped & hard).sum(), hard.sum(), (flipped & ~hard).sum(), (~hard).sum()])
    hard_flips, hard, easy_flips, easy = np.array(counts, dtype=float).T
    rates = {"easy": rate(easy_flips, easy), "hard": rate(hard_flips, hard)}
    times = rate_ratio(hard_flips, hard, easy_flips, easy)
    theirs = paper.MARGIN_FLIPS
    table = Table(
        (
            Column("tokens", "tokens"),
            Column("flipped", "margin-flipped", "percent"),
            Column("count", "tokens of that kind", "count"),
            Column("ratio", "ratio hard : easy", "times"),
            Column("paper", paper_heading("huginn", "gsm8k"), "percent"),
            Column("paper_ratio", "paper: ratio", "times"),
        ),
        (
            ("easy", rates["easy"], int(easy.sum()), None, fraction(theirs["easy"]), None),
            ("hard", rates["hard"], int(hard.sum()), times, fraction(theirs["hard"]), theirs["ratio"]),
        ),
    )
    more = rate_difference(hard_flips, hard, easy_flips, easy)
    told = (
        f"The contrast flips {phrase(rates['hard'], digits=2)} of the hard and {phrase(rates['easy'], digits=2)} of the easy "
        f"tokens{f', a ratio of {phrase(times, 1, 1, str())}' if times else ''}."
    )
    notes = (f"z_{lab.loops} − {lab.strength:g} · z_{lab.amateur} over the whole vocabulary, on greedy's answers.",)
    claim = "the contrast flips hard tokens many times as often as easy ones (10.7 times)"
    return Result(table, Finding(claim, above(more), told), notes=notes)


# -- Figure 5


def _fig5(lab: Laboratory) -> Result:
    counts, means = [], []  # [answers, loops, 4]: hard peaks, hard tokens, all peaks, all tokens; [answers, 4]
    for trace in greedy_traces(lab):
        hard, peak = statistics.hard_tokens(trace), statistics.peak_loop(trace)
        each = [np.bincount(peak[mask], minlength=lab.loops + 1)[1:] for mask in (hard, np.ones_like(hard))]
        totals = [np.full(lab.loops, mask.sum()) for mask in (hard, np.ones_like(hard))]
        counts.append(np.stack([each[0], totals[0], each[1], totals[1]], axis=-1))
        means.append([peak[hard].sum(), hard.sum(), peak.sum(), len(peak)])
    sums = np.array(counts, dtype=float)
    shares = {
        "hard": estimates(sums[..., :2], lambda s: s[..., 0] / s[..., 1]),
        "all": estimates(sums[..., 2:], lambda s: s[..., 0] / s[..., 1]),
    }
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
    told_band = f"paper: hard tokens peak at {PEAK[0]}–{PEAK[1]} of {PAPER_LOOPS}" + (
        "" if lab.loops == PAPER_LOOPS else f", here {first}–{last} of {lab.loops}"
    )
    bands = (Band(first - 0.5, last + 0.5, told_band),)
    panel = Panel("groups", "Loop of the peak margin", "loop", "share of tokens", tuple(filter(None, series)), bands)
    columns = list(np.array(means, dtype=float).T)
    later = estimate(columns, lambda s: s[..., 2] / s[..., 3] - s[..., 0] / s[..., 1])
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


FIG3 = Element("fig3", "Figure 3: the most frequent hard tokens", _fig3)
FIG4 = Element("fig4", "Figure 4: hard tokens in right and wrong answers", _fig4)
TABLE6 = Element("table6", "Table 6: margin flips", _table6)
FIG5 = Element("fig5", "Figure 5: the loop of the peak margin", _fig5)
