"""`compare`: several people's things, each told by comparison with another's.

The keyword regularity lives here: in the training mix "more" nearly always means adding. Reversed, the person who is
known is the one who "has 9 more than" the person asked for, and the same word means subtracting.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from loopcd.evaluation.tasks.steps.draw import Draw
from loopcd.evaluation.tasks.steps.equations import Operation, Symbol, total
from loopcd.evaluation.tasks.steps.problem import Line, Sketch

OPPOSITE: dict[Symbol, Symbol] = {"+": "-", "-": "+", "*": "/", "/": "*"}


@dataclass(frozen=True)
class Relation:
    words: str
    symbol: Symbol
    number: int


def compare(draw: Draw, operations: int, reverse: bool = False) -> Sketch:
    """People in a row, each compared with the one before; with `reverse`, one comparison is told the other way round."""
    item = draw.item()
    summed = 0 if operations == 1 else draw.choice((0, 0, 1, 2)) if operations > 3 else draw.choice((0, 0, 1))
    relations = operations - summed
    people = [draw.person() for _ in range(relations + 1)]
    turned = draw.random.randrange(relations) if reverse else -1
    values = [draw.amount()]
    facts = [f"{people[0]} has {values[0]} {item}."]
    lines: list[Line] = []
    for index, (known, asked) in enumerate(pairwise(people)):
        relation = _relation(draw, item)
        subject, other = (known, asked) if index == turned else (asked, known)
        symbol = OPPOSITE[relation.symbol] if index == turned else relation.symbol
        facts.append(f"{subject} has {relation.words} {other}.")
        operation = Operation(symbol, values[-1], relation.number)
        lines.append(Line(f"{asked} has", operation, item, f"How many {item} does {asked} have?"))
        values.append(operation.value)
    if summed:
        lines.append(_together(people, values, item, summed))
    if draw.chance(draw.knobs.shuffled):
        draw.random.shuffle(facts)
    return Sketch(tuple(facts), tuple(lines), f"{draw.person()} has {draw.amount()} {item}.")


def _relation(draw: Draw, item: str) -> Relation:
    kind = draw.choice(draw.knobs.comparisons)
    amount, factor = draw.amount(), draw.factor()
    if kind == "more":
        return Relation(f"{amount} more {item} than", "+", amount)
    if kind == "fewer":
        return Relation(f"{amount} fewer {item} than", "-", amount)
    if kind == "half":
        return Relation(f"half as many {item} as", "/", 2)
    times = "twice" if factor == 2 else f"{factor} times"
    return Relation(f"{times} as many {item} as", "*", factor)


def _together(people: list[str], values: list[int], item: str, summed: int) -> Line:
    """The sum of the first and last person's things, or (two additions in one equation) of the first, second and last."""
    chosen = [0, -1] if summed == 1 else [0, 1, -1]
    operation = total([values[index] for index in chosen])
    names = [people[index] for index in chosen]
    asks = f"How many {item} do {', '.join(names[:-1])} and {names[-1]} have together?"
    return Line("Together they have", operation, item, asks)
