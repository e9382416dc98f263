"""`work`: people who pick so many things an hour, for some hours; some of these are then lost."""

from __future__ import annotations

from loopcd.evaluation.tasks.steps.draw import Draw
from loopcd.evaluation.tasks.steps.equations import Operation, total
from loopcd.evaluation.tasks.steps.problem import Line, Sketch


def work(draw: Draw, operations: int, reverse: bool = False) -> Sketch:
    """Two people (2 operations), a loss (3), a sharing (4); more people beyond that. `reverse` has no meaning here."""
    item = draw.item()
    count = max(2, operations - 2)
    people = [draw.person() for _ in range(count)]
    speeds = [draw.few() for _ in people]
    hours = draw.factor()
    picks = [f"{person} picks {speed} {item}" for person, speed in zip(people, speeds, strict=True)]
    facts = [f"In an hour {', '.join(picks[:-1])} and {picks[-1]}.", f"They work for {hours} hours."]
    picked = Operation("*", total([*speeds]), hours)
    lines = [Line("They pick", picked, item, f"How many {item} do they pick?")]
    value = picked.value
    remaining = operations - count
    lost, sharing = draw.amount(), draw.factor()
    if remaining > 0:
        facts.append(f"They lose {lost} {item} on the way.")
        kept = Operation("-", value, lost)
        lines.append(Line("They keep", kept, item, f"How many {item} do they keep?"))
        value = kept.value
    if remaining > 1:
        facts.append(f"They put the {item} into {sharing} {draw.container()}.")
        share = Operation("/", value, sharing)
        lines.append(Line("Each holds", share, item, f"How many {item} does each hold?"))
    return Sketch(tuple(facts), tuple(lines), f"{draw.person()} has {draw.amount()} {draw.item()}.")
