"""The knobs of difficulty, the variants of the benchmark as settings of them, and its splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

SPLITS = ("train", "tuning", "test")
BUCKETS = 100
TUNING = range(80, 90)
TEST = range(90, 100)


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


MIX = Knobs(operations=(2, 3, 4), sizes=(20, 40, 60), counts=9, factors=8, result=250, shuffled=0.25, misleading=0.13)
# One regularity and nothing else: "more" means adding, unless the comparison is told the other way round.
CUE = replace(MIX, operations=(1, 2), sizes=(20,), result=99, shuffled=0.0, families=("compare",), comparisons=("more",))

VARIANTS: dict[str, Knobs] = {
    "steps": MIX,
    "steps-easy": replace(MIX, operations=(2,), sizes=(20,), result=99, shuffled=0.0, misleading=0.0),
    "steps-hard": replace(MIX, operations=(5, 6), sizes=(80,), factors=9, result=999, shuffled=0.5),
    "steps-shift": replace(MIX, misleading=1.0),
    "steps-cue": CUE,
    "steps-cue-shift": replace(CUE, misleading=1.0),
}


def related(variant: str) -> tuple[str, ...]:
    """The variants on which a model of this variant's text is measured, the text's own first."""
    mine = variant.startswith("steps-cue")
    return tuple(name for name in VARIANTS if name.startswith("steps-cue") == mine)


def split_of(operations: tuple[str, ...]) -> str:
    """Which split a problem belongs to: by what is computed, not by the words around it.

    Two problems that compute the same sequence of operations on the same numbers always fall into the same split, so no split
    repeats another's questions, nor another's computation in other words.
    """
    digest = blake2b(";".join(operations).encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % BUCKETS
    if bucket in TEST:
        return "test"
    return "tuning" if bucket in TUNING else "train"
