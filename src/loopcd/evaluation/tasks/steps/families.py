"""The families of problems. Each is a function from random choices and a number of operations to a sketch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from itertools import pairwise
from random import Random

from loopcd.evaluation.tasks.steps.problem import Cue, Line, Operation, Sketch, Symbol, total

FRACTIONS = {2: "half", 3: "a third", 4: "a quarter"}
OPPOSITE: dict[Symbol, Symbol] = {"+": "-", "-": "+", "*": "/", "/": "*"}


@dataclass(frozen=True)
class Knobs:
    """How hard problems are.

    operations   how many operations a problem takes, one of these, drawn uniformly
    sizes        the largest number a question may hold, one of these, drawn for each problem
    counts       the largest count or price that is multiplied
    factors      the largest multiplier or divisor of a quantity
    result       no intermediate result is larger
    shuffled     share of comparison problems whose facts do not stand in the order of use
    misleading   share of problems that contradict one of the surface regularities
    families     of these, drawn uniformly
    comparisons  what `compare` compares by, drawn uniformly
    """

    operations: tuple[int, ...]
    sizes: tuple[int, ...]
    counts: int
    factors: int
    result: int
    shuffled: float
    misleading: float
    families: tuple[str, ...] = ("chain", "compare", "groups", "shop", "work")
    comparisons: tuple[str, ...] = ("more", "more", "fewer", "fewer", "times", "half")


# -- random choices of one problem: its numbers, within the knobs, and its people and things, each used once

SHE = ("Mia", "Anna", "Emma", "Lena", "Nora", "Sara", "Ruth", "Zoe")
HE = ("Leo", "Hugo", "Tom", "Ben", "Omar", "Paul", "Ivan", "Noah")
ITEMS = ("coins", "cards", "shells", "stamps", "beads", "apples", "plums", "nuts", "stones", "keys")
CONTAINERS = ("boxes", "bags", "jars", "trays")
GOODS = ("pen", "book", "cup", "lamp", "ball", "cap")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Draw:
    """Draws from one seeded generator. People, things and goods are handed out without repetition."""

    def __init__(self, random: Random, knobs: Knobs):
        self.random, self.knobs, self.choice = random, knobs, random.choice
        self.size = random.choice(knobs.sizes)
        self._taken: set[str] = set()

    def _unused(self, words: tuple[str, ...]) -> str:
        while (word := self.choice(words)) in self._taken:
            pass
        self._taken.add(word)
        return word

    person = partialmethod(_unused, SHE + HE)
    item = partialmethod(_unused, ITEMS)
    container = partialmethod(_unused, CONTAINERS)
    good = partialmethod(_unused, GOODS)

    def amount(self) -> int:
        """A quantity that is given: at least 3, and at most this problem's size."""
        return self.random.randint(3, self.size)

    def few(self) -> int:
        """A count or a price, which is multiplied: small, so that products stay in range."""
        return self.random.randint(2, self.knobs.counts)

    def factor(self) -> int:
        return self.random.randint(2, self.knobs.factors)


def pronoun(person: str) -> str:
    return "she" if person in SHE else "he"


def listed(words: list[str]) -> str:
    """`a, b and c`"""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def times(factor: int) -> str:
    return "twice" if factor == 2 else f"{factor} times"


# -- chain: one person's things, changed by one event a day


def chain(draw: Draw, operations: int) -> Sketch:
    """A start, then events until they take `operations` operations.

    Two events of one operation each are worked out in one equation, `( 14 + 5 ) * 2`.
    """
    owner, item = draw.person(), draw.item()
    value: int | Operation = draw.amount()
    facts = [f"{owner} has {value} {item}."]
    lines: list[Line] = []
    remaining = operations
    for day in DAYS:
        fact, operation = _event(draw, value, item, remaining)
        facts.append(f"On {day} {pronoun(owner)} {fact}.")
        remaining -= 1 if isinstance(value, Operation) else sum(1 for _ in operation.steps())
        if remaining and isinstance(value, int) and not isinstance(operation.right, Operation):
            value = operation  # this day's result is worked out together with the next one's
            continue
        before = f"On {day} {pronoun(owner)} has"
        lines.append(Line(before, operation, item, f"How many {item} does {owner} have on {day}?"))
        value = operation.value
        if not remaining:
            break
    return Sketch(facts, lines, f"{draw.person()} has {draw.amount()} {item}.")


def _event(draw: Draw, value: int | Operation, item: str, remaining: int) -> tuple[str, Operation]:
    """What happens on a day, and what it does to the number."""
    together = isinstance(value, Operation)
    kind = draw.choice(("gain", "lose", "scale", "keep") + (("packs", "gifts") if remaining > 1 and not together else ()))
    other, amount, factor, few = draw.person(), draw.amount(), draw.factor(), draw.few()
    if kind == "gain":
        how = draw.choice((f"finds {amount} {item}", f"buys {amount} {item}", f"gets {amount} {item} from {other}"))
        return how, Operation("+", value, amount)
    if kind == "lose":
        how = draw.choice((f"loses {amount} {item}", f"sells {amount} {item}", f"gives {amount} {item} to {other}"))
        return how, Operation("-", value, amount)
    if kind == "scale":
        return f"has {times(factor)} as many {item} as before", Operation("*", value, factor)
    if kind == "keep":
        factor = draw.choice(tuple(FRACTIONS))
        return f"keeps {FRACTIONS[factor]} of the {item}", Operation("/", value, factor)
    product = Operation("*", few, factor)
    if kind == "packs":
        return f"buys {few} bags of {factor} {item}", Operation("+", value, product)
    return f"gives {factor} {item} to each of {few} friends", Operation("-", value, product)


# -- compare: several people's things, each told by comparison with another's
#
# The keyword regularity lives here: in the training mix "more" nearly always means adding. Reversed, the person who is known is
# the one who "has 9 more than" the person asked for, and the same word means subtracting.


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
        words, symbol, number = _relation(draw, item)
        facts.append(f"{known} has {words} {asked}." if index == turned else f"{asked} has {words} {known}.")
        operation = Operation(OPPOSITE[symbol] if index == turned else symbol, values[-1], number)
        lines.append(Line(f"{asked} has", operation, item, f"How many {item} does {asked} have?"))
        values.append(operation.value)
    if summed:
        lines.append(_together(people, values, item, summed))
    if draw.random.random() < draw.knobs.shuffled:
        draw.random.shuffle(facts)
    return Sketch(facts, lines, f"{draw.person()} has {draw.amount()} {item}.")


def _relation(draw: Draw, item: str) -> tuple[str, Symbol, int]:
    """In words, and as what is done with which number."""
    kind = draw.choice(draw.knobs.comparisons)
    amount, factor = draw.amount(), draw.factor()
    if kind == "more":
        return f"{amount} more {item} than", "+", amount
    if kind == "fewer":
        return f"{amount} fewer {item} than", "-", amount
    if kind == "half":
        return f"half as many {item} as", "/", 2
    return f"{times(factor)} as many {item} as", "*", factor


def _together(people: list[str], values: list[int], item: str, summed: int) -> Line:
    """The sum of the first and last person's things, or (two additions in one equation) of the first, second and last."""
    chosen = [0, -1] if summed == 1 else [0, 1, -1]
    operation = total([values[index] for index in chosen])
    asks = f"How many {item} do {listed([people[index] for index in chosen])} have together?"
    return Line("Together they have", operation, item, asks)


# -- groups: containers with the same number of things each; some are bad, and the rest is shared


def groups(draw: Draw, operations: int) -> Sketch:
    """One kind of container for 2 or 3 operations, two kinds for 4 and 5, three from 6."""
    item = draw.item()
    kinds = 1 + (operations > 3) + (operations > 5)
    facts, products = [], []
    for _ in range(kinds):
        containers, each = draw.few(), draw.few()
        facts.append(f"There are {containers} {draw.container()} with {each} {item} each.")
        products.append(Operation("*", containers, each))
    lines: list[Line] = []
    remaining = operations - (2 * kinds - 1)
    value: int | Operation = products[0]
    if kinds > 1:
        lines.append(Line("In all there are", total(products), item, f"How many {item} are there in all?"))
        value = lines[-1].operation.value
    bad, sharing = draw.amount(), draw.factor()
    word = draw.choice(("broken", "lost", "sold"))
    if remaining > 0:
        facts.append(f"{bad} of the {item} are {word}.")
        lines.append(Line("There are", Operation("-", value, bad), f"{item} left", f"How many {item} are left?"))
        value = lines[-1].operation.value
    if remaining > 1:
        facts.append(f"The others are shared by {sharing} friends.")
        share = Operation("/", value, sharing)
        lines.append(Line("Each friend gets", share, item, f"How many {item} does each friend get?"))
    return Sketch(facts, lines, f"There are {draw.amount()} {draw.item()} on the table.")


# -- shop: several goods at their prices, and the change


def shop(draw: Draw, operations: int) -> Sketch:
    """One good and the change (2), two goods (3), with change (4); three goods from 5."""
    buyer = draw.person()
    kinds = 1 + (operations > 2) + (operations > 4)
    with_change = operations % 2 == 0
    facts, products, basket = [], [], []
    for _ in range(kinds):
        good, price, count = draw.good(), draw.few(), draw.few()
        facts.append(f"A {good} costs {price} dollars.")
        products.append(Operation("*", count, price))
        basket.append(f"{count} {good}s")
    facts.append(f"{buyer} buys {listed(basket)}.")
    cost = total(products) if kinds > 1 else products[0]
    lines = [Line(f"{buyer} spends", cost, "dollars", f"How many dollars does {buyer} spend?")]
    if with_change:
        paid = cost.value + draw.amount()
        facts.append(f"{pronoun(buyer).capitalize()} pays with {paid} dollars.")
        back = Operation("-", paid, cost.value)
        lines.append(Line(f"{buyer} gets back", back, "dollars", f"How many dollars does {buyer} get back?"))
    return Sketch(facts, lines, f"A {draw.good()} costs {draw.few()} dollars.")


# -- work: people who pick so many things an hour, for some hours; some of these are then lost


def work(draw: Draw, operations: int) -> Sketch:
    """Two people (2 operations), a loss (3), a sharing (4); more people beyond that."""
    item = draw.item()
    count = max(2, operations - 2)
    people = [draw.person() for _ in range(count)]
    speeds = [draw.few() for _ in people]
    hours = draw.factor()
    picks = [f"{person} picks {speed} {item}" for person, speed in zip(people, speeds, strict=True)]
    facts = [f"In an hour {listed(picks)}.", f"They work for {hours} hours."]
    lines = [Line("They pick", Operation("*", total(speeds), hours), item, f"How many {item} do they pick?")]
    value = lines[-1].operation.value
    remaining = operations - count
    lost, sharing = draw.amount(), draw.factor()
    if remaining > 0:
        facts.append(f"They lose {lost} {item} on the way.")
        lines.append(Line("They keep", Operation("-", value, lost), item, f"How many {item} do they keep?"))
        value = lines[-1].operation.value
    if remaining > 1:
        facts.append(f"They put the {item} into {sharing} {draw.container()}.")
        share = Operation("/", value, sharing)
        lines.append(Line("Each holds", share, item, f"How many {item} does each hold?"))
    return Sketch(facts, lines, f"{draw.person()} has {draw.amount()} {draw.item()}.")


# -- all of them


@dataclass(frozen=True)
class ProblemFamily:
    """`cues` are the ways in which a problem of this family can mislead; one with a keyword is built in reverse too."""

    name: str
    build: Callable[..., Sketch]  # of the choices and the number of operations
    cues: tuple[Cue, ...]


FAMILIES: tuple[ProblemFamily, ...] = (
    ProblemFamily("chain", chain, ("intermediate", "distractor")),
    ProblemFamily("compare", compare, ("keyword",)),
    ProblemFamily("groups", groups, ("intermediate", "distractor")),
    ProblemFamily("shop", shop, ("intermediate", "distractor")),
    ProblemFamily("work", work, ("intermediate", "distractor")),
)
