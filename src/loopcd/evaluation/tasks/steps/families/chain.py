"""`chain`: one person's things, changed by one event a day."""

from __future__ import annotations

from dataclasses import dataclass

from loopcd.evaluation.tasks.steps.draw import DAYS, Draw, pronoun
from loopcd.evaluation.tasks.steps.equations import Operation
from loopcd.evaluation.tasks.steps.problem import Line, Sketch

FRACTIONS = {2: "half", 3: "a third", 4: "a quarter"}


@dataclass(frozen=True)
class Event:
    fact: str
    operation: Operation


def chain(draw: Draw, operations: int, reverse: bool = False) -> Sketch:
    """A start, then events until they take `operations` operations. `reverse` has no meaning here.

    Two events of one operation each are worked out in one equation, `( 14 + 5 ) * 2`.
    """
    owner, item = draw.person(), draw.item()
    value: int | Operation = draw.amount()
    facts = [f"{owner} has {value} {item}."]
    lines: list[Line] = []
    remaining = operations
    for day in DAYS:
        event = _event(draw, value, item, remaining)
        facts.append(f"On {day} {pronoun(owner)} {event.fact}.")
        remaining -= 1 if isinstance(value, Operation) else sum(1 for _ in event.operation.steps())
        if remaining and isinstance(value, int) and not isinstance(event.operation.right, Operation):
            value = event.operation  # this day's result is worked out together with the next one's
            continue
        before = f"On {day} {pronoun(owner)} has"
        lines.append(Line(before, event.operation, item, f"How many {item} does {owner} have on {day}?"))
        value = event.operation.value
        if not remaining:
            break
    return Sketch(tuple(facts), tuple(lines), f"{draw.person()} has {draw.amount()} {item}.")


def _event(draw: Draw, value: int | Operation, item: str, remaining: int) -> Event:
    together = isinstance(value, Operation)
    kind = draw.choice(("gain", "lose", "scale", "keep") + (("packs", "gifts") if remaining > 1 and not together else ()))
    other, amount, factor, few = draw.person(), draw.amount(), draw.factor(), draw.few()
    if kind == "gain":
        how = draw.choice((f"finds {amount} {item}", f"buys {amount} {item}", f"gets {amount} {item} from {other}"))
        return Event(how, Operation("+", value, amount))
    if kind == "lose":
        how = draw.choice((f"loses {amount} {item}", f"sells {amount} {item}", f"gives {amount} {item} to {other}"))
        return Event(how, Operation("-", value, amount))
    if kind == "scale":
        times = "twice" if factor == 2 else f"{factor} times"
        return Event(f"has {times} as many {item} as before", Operation("*", value, factor))
    if kind == "keep":
        factor = draw.choice(tuple(FRACTIONS))
        return Event(f"keeps {FRACTIONS[factor]} of the {item}", Operation("/", value, factor))
    product = Operation("*", few, factor)
    if kind == "packs":
        return Event(f"buys {few} bags of {factor} {item}", Operation("+", value, product))
    return Event(f"gives {factor} {item} to each of {few} friends", Operation("-", value, Operation("*", few, factor)))
