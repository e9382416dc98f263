"""Random choices of one problem: its numbers, within the knobs, and its people and things, each used once."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from loopcd.evaluation.tasks.steps.knobs import Knobs

SHE = ("Mia", "Anna", "Emma", "Lena", "Nora", "Sara", "Ruth", "Zoe")
HE = ("Leo", "Hugo", "Tom", "Ben", "Omar", "Paul", "Ivan", "Noah")
PEOPLE = SHE + HE
ITEMS = ("coins", "cards", "shells", "stamps", "beads", "apples", "plums", "nuts", "stones", "keys")
CONTAINERS = ("boxes", "bags", "jars", "trays")
GOODS = ("pen", "book", "cup", "lamp", "ball", "cap")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

T = TypeVar("T")


class Draw:
    """Draws from one seeded generator. People, things and goods are handed out without repetition."""

    def __init__(self, random: Random, knobs: Knobs):
        self.random = random
        self.knobs = knobs
        self.size = random.choice(knobs.sizes)
        self._taken: set[str] = set()

    def person(self) -> str:
        return self._unused(PEOPLE)

    def item(self) -> str:
        return self._unused(ITEMS)

    def container(self) -> str:
        return self._unused(CONTAINERS)

    def good(self) -> str:
        return self._unused(GOODS)

    def amount(self) -> int:
        """A quantity that is given: at least 3, and at most this problem's size."""
        return self.random.randint(3, self.size)

    def few(self) -> int:
        """A count or a price, which is multiplied: small, so that products stay in range."""
        return self.random.randint(2, self.knobs.counts)

    def factor(self) -> int:
        return self.random.randint(2, self.knobs.factors)

    def choice(self, options: tuple[T, ...]) -> T:
        return self.random.choice(options)

    def _unused(self, words: tuple[str, ...]) -> str:
        while True:
            word = self.random.choice(words)
            if word not in self._taken:
                self._taken.add(word)
                return word

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


def pronoun(person: str) -> str:
    return "she" if person in SHE else "he"
