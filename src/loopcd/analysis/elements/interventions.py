"""Interventions in greedy's answers: tokens exchanged (Table 1), and late decisions taken back (Table 8)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import fraction, greedy_right, phrase, points, share
from loopcd.analysis.intervals import rate, rate_difference
from loopcd.analysis.laboratory import BEST, Laboratory
from loopcd.analysis.result import Finding, Result, above
from loopcd.decoding import Generation, Greedy, generate
from loopcd.decoding.chat import end_tokens
from loopcd.decoding.texts import trim
from loopcd.evaluation import paper
from loopcd.evaluation.engine import using_threads
from loopcd.evaluation.plan import batches
from loopcd.evaluation.runner import Progress
from loopcd.evaluation.statistics import compare
from loopcd.evaluation.store import sample_line
from loopcd.evaluation.table import Cell, Column, Estimate, Table
from loopcd.evaluation.task import Task
from loopcd.tracing import LoopTrace

MOST = 5  # positions of an answer
SEED = 0
RUN = "reversion"  # the name that the resumed answers are kept under
Source = Literal["last", "peak"]  # the loop whose best tokens they are


def answer_text(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Tokens as the text that is graded: without special tokens, up to the first stop string."""
    return trim(tokenizer.decode(list(tokens), skip_special_tokens=True), stop)[0]


# -- token replacement (Table 1): how far a right answer survives when some of its tokens are exchanged, the rest staying
#
# k = min(5, hard tokens, easy tokens) positions of one kind are drawn, and each gets a token drawn uniformly from the ten best
# of the last loop there, as the authors' code does (the paper's text says three); or, as a variant of theirs, from the ten best
# of the loop at which the margin of the final winner peaks. The best one is among them, so that some draws change nothing.


def replaced_answers(
    trace: LoopTrace, hard: np.ndarray, random: Random, source: Source = "last"
) -> dict[str, list[int]] | None:
    """The answer's tokens after replacing "easy" and after replacing "hard" positions; None where one kind is missing.

    `hard` is a mask over the answer's tokens.
    """
    kinds = {"easy": np.flatnonzero(~hard), "hard": np.flatnonzero(hard)}
    budget = min(MOST, *map(len, kinds.values()))
    if budget == 0:
        return None
    loop = -1 if source == "last" else statistics.peak_loop(trace) - 1
    best = trace.top_ids[np.arange(len(trace)), loop, :BEST]  # [n, BEST]; fewer where the vocabulary is that small
    made = {}
    for kind, positions in kinds.items():
        made[kind] = trace.token_ids.tolist()
        for position in random.sample(positions.tolist(), budget):
            made[kind][position] = int(random.choice(best[position]))
    return made


def broken_answers(lab: Laboratory, source: Source = "last") -> tuple[dict[str, list[bool]], int]:
    """For each right answer with both kinds of tokens: whether replacing "easy" and "hard" ones breaks it; and how many
    right answers have one kind only."""
    task, metric = lab.task(), lab.task().metrics[0]
    items, texts, left_out = [], {"easy": [], "hard": []}, 0
    for item, trace, right in zip(task.items, lab.traces(), greedy_right(lab, metric), strict=True):
        if not right:
            continue
        made = replaced_answers(trace, statistics.hard_tokens(trace), Random(f"replacement/{SEED}/{item.id}"), source)
        if made is None:
            left_out += 1
            continue
        items.append(item)
        for kind, tokens in made.items():
            texts[kind].append(answer_text(lab.engine.tokenizer, tokens, task.stop))
    broken = {kind: [not grades[metric] for grades in task.grade(items, each)] for kind, each in texts.items()}
    return broken, left_out


def table1(lab: Laboratory) -> Result:
    broken, left_out = broken_answers(lab)
    columns = (
        Column("replaced", "replaced"),
        Column("source", "by the best of"),
        Column("broken", "right answers that become wrong", "percent"),
        Column("answers", "answers", "count"),
        Column("paper_gsm8k", "paper: Huginn-0125, GSM8K", "percent"),
        Column("paper_strategyqa", "paper: Huginn-0125, StrategyQA", "percent"),
    )
    rows: list[tuple[Cell, ...]] = []
    for source, found in (("the last loop", broken), ("the peak's loop", broken_answers(lab, "peak")[0])):
        for kind, wrong in found.items():
            theirs = [fraction(each[kind]) if found is broken else None for each in paper.REPLACEMENT.values()]
            rows.append((f"{kind} tokens", source, share(wrong) if wrong else None, len(wrong), *theirs))
    note = (
        f"In each answer that is right by {lab.task().metrics[0]}, k = min({MOST}, hard, easy) tokens of a kind are replaced, "
        f"each by a uniform draw from the {BEST} best of its position (seed {SEED}): of the last loop, or of the loop at which "
        f"its margin peaks. {left_out} right answers have tokens of one kind only and are left out; the paper keeps 303 "
        "(GSM8K) and 551 (StrategyQA)."
    )
    return Result(Table(columns, tuple(rows)), _sensitive(broken), notes=(note,), settings={"seed": SEED})


def _sensitive(broken: dict[str, list[bool]]) -> Finding:
    claim = "replacing hard tokens breaks more right answers than replacing easy ones"
    if not broken["hard"]:
        return Finding(claim, "is undecided", "No right answer has both hard and easy tokens here.")
    more = Estimate.difference(compare([broken["easy"]], [broken["hard"]]))
    told = (
        f"Replacing hard tokens breaks {phrase(share(broken['hard']))} of the right answers, replacing as many easy ones "
        f"{phrase(share(broken['easy']))}: a difference of {points(more, 1)}."
    )
    return Finding(claim, more.above(0), told)


# -- Late-Flip reversion (Table 8): take back what a late loop decided, and let greedy decoding go on from there
#
# At each Late-Flip position, one at a time, the last loop's winner is replaced by the most frequent other first choice of the
# latter half of the loops, and the rest is generated anew.


@dataclass(frozen=True)
class Reversion:
    """One changed token: of which item, at which position; `prefix` are the answer's tokens up to it, and it."""

    item: int
    position: int
    prompt: tuple[int, ...]
    prefix: tuple[int, ...]


def reversions(trace: LoopTrace, item: int) -> list[Reversion]:
    """One for each Late-Flip position of an answer."""
    tokens, prompt = trace.token_ids.tolist(), tuple(trace.prompt_ids.tolist())
    return [
        Reversion(item, position, prompt, (*tokens[:position], other))
        for position, other in enumerate(statistics.late_alternatives(trace).tolist())
        if other >= 0
    ]


def resumed_texts(lab: Laboratory, task: Task, wanted: Sequence[Reversion]) -> list[str]:
    """What greedy decoding makes of each, as the text that is graded. Kept in the task's folder, and gone on with there."""
    ids = [f"{task.items[each.item].id}@{each.position}" for each in wanted]
    report = lab.tally.stage(f"reversions of {task.name}")
    with lab.opened(task) as store:
        kept = store.samples(RUN)
        found, begun = sum(name in kept for name in ids), time.monotonic()
        report(Progress(found, len(ids), found, 0.0))
        for places in batches([len(each.prompt) + len(each.prefix) for each in wanted], lab.engine.batch_size):
            if all(ids[place] in kept for place in places):
                continue
            lines = _resume(lab, task, {ids[place]: wanted[place] for place in places})  # a batch is made as a whole
            store.add_samples(RUN, [line for name, line in lines.items() if name not in kept])
            kept.update(lines)
            report(Progress(sum(name in kept for name in ids), len(ids), found, time.monotonic() - begun))
    return [kept[name]["text"] for name in ids]


def _resume(lab: Laboratory, task: Task, batch: dict[str, Reversion]) -> dict[str, dict[str, Any]]:
    engine, longest = lab.engine, task.max_new_tokens
    ends = end_tokens(engine.model, engine.tokenizer)  # nothing is to be resumed after one, nor where there is no room
    room = {name: min(longest, engine.model.max_context - len(each.prompt)) for name, each in batch.items()}
    going = {name: each for name, each in batch.items() if len(each.prefix) < room[name] and each.prefix[-1] not in ends}
    made: list[Generation] = []
    if going:
        with using_threads(engine.threads):
            made = generate(
                engine.model,
                engine.tokenizer,
                [[*each.prompt, *each.prefix] for each in going.values()],
                Greedy(),
                max_new_tokens=longest - min(len(each.prefix) for each in batch.values()),
                stop=task.stop,
                batch_size=len(going),
                num_loops=engine.num_loops,
            )
    continued = {name: each.token_ids for name, each in zip(going, made, strict=True)}
    lines = {}
    for name, each in batch.items():
        tokens = [*each.prefix, *continued.get(name, [])][:longest]
        text = answer_text(engine.tokenizer, tokens, task.stop)
        reason = "length" if len(tokens) >= room[name] else "stop"
        lines[name] = sample_line(name, Generation(text, tokens, reason, [], 0, 0))  # what the loops did is of no interest here
    return lines


def table8(lab: Laboratory) -> Result:
    task, right = lab.task(), greedy_right(lab)
    wanted = [each for place, trace in enumerate(lab.traces()) for each in reversions(trace, place)]
    grades = task.grade([task.items[each.item] for each in wanted], resumed_texts(lab, task, wanted))
    changed, tried = np.zeros((2, len(right))), np.zeros((2, len(right)))  # [was wrong, was right] of each answer
    for each, now in zip(wanted, grades, strict=True):
        was = int(right[each.item])
        tried[was, each.item] += 1
        changed[was, each.item] += was != now[lab.metric]
    repaired, broken = (rate(changed[was], tried[was]) for was in (0, 1))
    more = rate_difference(changed[1], tried[1], changed[0], tried[0])
    columns = (
        Column("outcome", "outcome"),
        Column("rate", "of the positions", "percent"),
        Column("positions", "Late-Flip positions", "count"),
        Column("answers", "answers", "count"),
        Column("paper", "paper: Huginn-0125, GSM8K", "percent"),
    )
    counts = [(int(each.sum()), int((each > 0).sum())) for each in tried]
    rows = (
        ("wrong → right", repaired, *counts[0], fraction(paper.REVERSION["repaired"])),
        ("right → wrong", broken, *counts[1], fraction(paper.REVERSION["broken"])),
    )
    note = (
        "Every Late-Flip position is reverted by itself: the prefix stays, the winner gives way to the most frequent other "
        f"first choice of loops {lab.loops // 2 + 1} to {lab.loops}, greedy decoding goes on. Intervals resample answers."
    )
    claim = "taking late revisions back breaks right answers more often than it repairs wrong ones"
    told = (
        f"Reverting a Late-Flip repairs {phrase(repaired)} of the wrong answers and breaks {phrase(broken)} of the right ones"
        f"{f': {points(more, 1)} apart.' if more else '; there are too few of them to compare.'}"
    )
    return Result(Table(columns, rows), Finding(claim, above(more), told), notes=(note,))
