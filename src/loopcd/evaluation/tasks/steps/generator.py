"""Variants and splits of the benchmark, and problems by seed: the same bytes for the same variant, split and seed.

Problem number i has a random generator of its own, so it does not depend on how many are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from random import Random

from loopcd.evaluation.tasks.steps.families import FAMILIES, Draw, Knobs, ProblemFamily
from loopcd.evaluation.tasks.steps.problem import Cue, Problem, Unsuitable

SPLITS = ("train", "tuning", "test")
ATTEMPTS = 400  # at a combination, a few of which have no problem in a split, or very few

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


def problems(variant: str, split: str, number: int, seed: int = 0) -> list[Problem]:
    """The first `number` problems of a split, no question twice; fewer are a prefix of more."""
    if number < 0:
        raise ValueError(f"number must be 0 or more, got {number}")
    found: dict[str, Problem] = {}
    candidates = stream(variant, split, seed)
    while len(found) < number:
        problem = next(candidates)
        found.setdefault(problem.question, problem)
    return list(found.values())


def stream(variant: str, split: str, seed: int = 0, start: int = 0) -> Iterator[Problem]:
    """Endless problems from index `start` on; a question may come again."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return (problem_at(variant, split, seed, index) for index in count(start))


def problem_at(variant: str, split: str, seed: int, index: int) -> Problem:
    random = Random(f"steps/{variant}/{split}/{seed}/{index}")
    knobs = VARIANTS[variant]
    while True:
        family = random.choice([family for family in FAMILIES if family.name in knobs.families])
        # Chosen before the numbers: a rejected draw must not change how often problems mislead.
        cue = random.choice(family.cues) if random.random() < knobs.misleading else None
        operations = random.choice(knobs.operations)
        for _ in range(ATTEMPTS):
            with suppress(Unsuitable):
                problem = _build(Draw(random, knobs), family, operations, cue)
                if split_of(problem.operations) == split:
                    return problem


def _build(draw: Draw, family: ProblemFamily, operations: int, cue: Cue | None) -> Problem:
    knobs = draw.knobs
    # The last line of an intermediate question is not needed: it is built, told as a fact, and left out of the answer.
    turned = {"reverse": True} if cue == "keyword" else {}
    sketch = family.build(draw, operations + (cue == "intermediate"), **turned)
    lines = sketch.lines[:-1] if cue == "intermediate" else sketch.lines
    # All lines are checked, also one that is left out: a story must be possible as told.
    values = [step.value for line in sketch.lines for step in line.operation.steps()]
    if not lines or min(values) < 1 or max(values) > knobs.result:
        raise Unsuitable(f"results {values} are out of range")
    computed = tuple(step.computed for line in lines for step in line.operation.steps())
    if len(computed) < min(knobs.operations):
        raise Unsuitable(f"{len(computed)} operations are too few")
    late = (sketch.irrelevant,) if cue == "distractor" else ()
    question = " ".join([*sketch.facts, *late, lines[-1].asks])
    gold = lines[-1].operation.value
    answer = "\n".join([*map(str, lines), f"#### {gold}"])
    return Problem(question, answer, gold, family.name, computed, cue)


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
    percent = int.from_bytes(digest, "big") % 100
    return "test" if percent >= 90 else "tuning" if percent >= 80 else "train"
