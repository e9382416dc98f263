"""`groups`: containers with the same number of things each; some are bad, and the rest is shared."""

from __future__ import annotations

from loopcd.evaluation.tasks.steps.draw import Draw
from loopcd.evaluation.tasks.steps.equations import Operation, total
from loopcd.evaluation.tasks.steps.problem import Line, Sketch


def groups(draw: Draw, operations: int, reverse: bool = False) -> Sketch:
    """One kind of container for 2 or 3 operations, two kinds for 4 and 5, three from 6. `reverse` has no meaning here."""
    item = draw.item()
    kinds = 1 + (operations > 3) + (operations > 5)
    facts, products = [], []
    for _ in range(kinds):
        containers, each = draw.few(), draw.few()
        facts.append(f"There are {containers} {draw.container()} with {each} {item} each.")
        products.append(Operation("*", containers, each))
    lines: list[Line] = []
    remaining = operations - (2 * kinds - 1)
    value: int | Operation = products[0] if kinds == 1 else total(products)
    if kinds > 1:
        lines.append(Line("In all there are", total(products), item, f"How many {item} are there in all?"))
        value = lines[-1].operation.value
    bad, sharing = draw.amount(), draw.factor()
    word = draw.choice(("broken", "lost", "sold"))
    if remaining > 0:
        facts.append(f"{bad} of the {item} are {word}.")
        left = Operation("-", value, bad)
        lines.append(Line("There are", left, f"{item} left", f"How many {item} are left?"))
        value = left.value
    if remaining > 1:
        facts.append(f"The others are shared by {sharing} friends.")
        share = Operation("/", value, sharing)
        lines.append(Line("Each friend gets", share, item, f"How many {item} does each friend get?"))
    return Sketch(tuple(facts), tuple(lines), f"There are {draw.amount()} {draw.item()} on the table.")
