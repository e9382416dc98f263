"""`shop`: several goods at their prices, and the change."""

from __future__ import annotations

from loopcd.evaluation.tasks.steps.draw import Draw, pronoun
from loopcd.evaluation.tasks.steps.equations import Operation, total
from loopcd.evaluation.tasks.steps.problem import Line, Sketch


def shop(draw: Draw, operations: int, reverse: bool = False) -> Sketch:
    """One good and the change (2), two goods (3), with change (4); three goods from 5. `reverse` has no meaning here."""
    buyer = draw.person()
    kinds = 1 + (operations > 2) + (operations > 4)
    with_change = operations % 2 == 0
    facts, products, basket = [], [], []
    for _ in range(kinds):
        good, price, count = draw.good(), draw.few(), draw.few()
        facts.append(f"A {good} costs {price} dollars.")
        products.append(Operation("*", count, price))
        basket.append(f"{count} {good}s")
    listed = f"{', '.join(basket[:-1])} and {basket[-1]}" if kinds > 1 else basket[0]
    facts.append(f"{buyer} buys {listed}.")
    cost = total(products) if kinds > 1 else products[0]
    lines = [Line(f"{buyer} spends", cost, "dollars", f"How many dollars does {buyer} spend?")]
    if with_change:
        paid = cost.value + draw.amount()
        facts.append(f"{pronoun(buyer).capitalize()} pays with {paid} dollars.")
        back = Operation("-", paid, cost.value)
        lines.append(Line(f"{buyer} gets back", back, "dollars", f"How many dollars does {buyer} get back?"))
    return Sketch(tuple(facts), tuple(lines), f"A {draw.good()} costs {draw.few()} dollars.")
