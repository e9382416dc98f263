"""Table 1: right answers that become wrong when tokens are replaced."""

from __future__ import annotations

from random import Random

from loopcd.analysis import statistics
from loopcd.analysis.elements.element import Element, fraction, phrase, points
from loopcd.analysis.elements.uncertainty import graded
from loopcd.analysis.interventions import BEST, MOST, Source, answer_text, replaced_answers
from loopcd.analysis.laboratory import Laboratory
from loopcd.analysis.result import Finding, Result
from loopcd.evaluation import paper
from loopcd.evaluation.statistics import compare, wilson
from loopcd.evaluation.table import Cell, Column, Estimate, Table

SEED = 0
CLAIM = "replacing hard tokens breaks more right answers than replacing easy ones"


def broken_answers(lab: Laboratory, source: Source = "last") -> tuple[dict[str, list[bool]], int]:
    """For each right answer with both kinds of tokens: whether replacing "easy" and "hard" ones breaks it; and how many
    right answers have one kind only."""
    task, metric = lab.task(), lab.task().metrics[0]
    items, texts, left_out = [], {"easy": [], "hard": []}, 0
    for item, (trace, right) in zip(task.items, graded(lab, metric), strict=True):
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


def _table1(lab: Laboratory) -> Result:
    broken, left_out = broken_answers(lab)
    columns = (
        Column("replaced", "replaced"),
        Column("source", "by the best of"),
        Column("broken", "right answers that become wrong", "percent"),
        Column("answers", "answers", "count"),
        Column("paper_gsm8k", "paper: Huginn-0125, GSM8K", "percent"),
        Column("paper_strategyqa", "paper: Huginn-0125, StrategyQA", "percent"),
    )
    rows = (*_rows(broken, "the last loop", paper.REPLACEMENT), *_rows(broken_answers(lab, "peak")[0], "the peak's loop", {}))
    notes = (
        f"In each answer that is right by {lab.task().metrics[0]}, k = min({MOST}, hard, easy) tokens of a kind are replaced, "
        f"each by a uniform draw from the {BEST} best of its position (seed {SEED}): of the last loop, or of the loop at which "
        f"its margin peaks. {left_out} right answers have tokens of one kind only and are left out; the paper keeps 303 "
        "(GSM8K) and 551 (StrategyQA).",
    )
    return Result(Table(columns, rows), _sensitive(broken), notes=notes, settings={"seed": SEED})


def _rows(broken: dict[str, list[bool]], source: str, theirs: dict[str, dict[str, float]]) -> list[tuple[Cell, ...]]:
    made: list[tuple[Cell, ...]] = []
    for kind, wrong in broken.items():
        told = Estimate.of(wilson(sum(wrong), len(wrong))) if wrong else None
        beside = [fraction(theirs.get(benchmark, {}).get(kind)) for benchmark in ("gsm8k", "strategyqa")]
        made.append((f"{kind} tokens", source, told, len(wrong), *beside))
    return made


def _sensitive(broken: dict[str, list[bool]]) -> Finding:
    if not broken["hard"]:
        return Finding(CLAIM, "is undecided", "No right answer has both hard and easy tokens here.")
    rates = {kind: Estimate.of(wilson(sum(wrong), len(wrong))) for kind, wrong in broken.items()}
    more = Estimate.difference(compare([broken["easy"]], [broken["hard"]]))
    told = (
        f"Replacing hard tokens breaks {phrase(rates['hard'])} of the right answers, replacing as many easy ones "
        f"{phrase(rates['easy'])}: a difference of {points(more, 1)}."
    )
    return Finding(CLAIM, more.above(0), told)


TABLE1 = Element("table1", "Table 1: token replacement", _table1)
