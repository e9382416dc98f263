"""What the judge and the program's place say to each other, through pipes that nobody else holds."""

import os
from dataclasses import dataclass

READY, RETURNED, RAISED = b"+", b".", b"!"  # one byte; a value follows RETURNED, as plain.py writes it
CHEATED, HONEST = b"c", b"h"
BASE, PLUS, DECOY = range(3)  # what is run; each has a pipe of its own for the replies, so that nothing stale is read


@dataclass(frozen=True)
class Talk:
    """The open ends: the judge asks, the program's place replies."""

    asking: int
    asked: int
    reading: tuple[int, int, int]
    replying: tuple[int, int, int]

    @property
    def of_judge(self) -> tuple[int, ...]:
        return (self.asking, *self.reading)

    @property
    def of_program(self) -> tuple[int, ...]:
        return (self.asked, *self.replying)


def open_talk() -> Talk:
    asked, asking = os.pipe()
    (base, to_base), (plus, to_plus), (decoy, to_decoy) = os.pipe(), os.pipe(), os.pipe()
    return Talk(asking, asked, (base, plus, decoy), (to_base, to_plus, to_decoy))
