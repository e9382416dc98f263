"""Problems by seed: any number of them, the same bytes for the same variant, split and seed.

Problem number i has a random generator of its own, so it does not depend on how many are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from random import Random

from loopcd.evaluation.tasks.steps.draw import Draw
from loopcd.evaluation.tasks.steps.families import FAMILIES, ProblemFamily
from loopcd.evaluation.tasks.steps.knobs import SPLITS, VARIANTS, Knobs, split_of
from loopcd.evaluation.tasks.steps.problem import Cue, Problem, Unsuitable, operations_of


def problems(variant: str, split: str, number: int, seed: int = 0) -> list[Problem]:
    """The first `number` problems of a split, no question twice; fewer are a prefix of more."""
    if number < 0:
        raise ValueError(f"number must be 0 or more, got {number}")
    return list(islice(_without_repetition(stream(variant, split, seed)), number))


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
        problem = _attempt_until(random, knobs, family, operations, cue, split)
        if problem is not None:
            return problem


def _attempt_until(
    random: Random, knobs: Knobs, family: ProblemFamily, operations: int, cue: Cue | None, split: str, attempts: int = 400
) -> Problem | None:
    """None when this combination seems to have no problem in this split; a few combinations are very small."""
    for _ in range(attempts):
        try:
            problem = _build(random, knobs, family, operations, cue)
        except Unsuitable:
            continue
        if split_of(problem.operations) == split:
            return problem
    return None


def _build(random: Random, knobs: Knobs, family: ProblemFamily, operations: int, cue: Cue | None) -> Problem:
    draw = Draw(random, knobs)
    # The last line of an intermediate question is not needed: it is built, told as a fact, and left out of the answer.
    turned = {"reverse": True} if cue == "keyword" else {}
    sketch = family.build(draw, operations + (cue == "intermediate"), **turned)
    lines = sketch.lines[:-1] if cue == "intermediate" else sketch.lines
    # All lines are checked, also one that is left out: a story must be possible as told.
    values = [step.value for line in sketch.lines for step in line.operation.steps()]
    if not lines or min(values) < 1 or max(values) > knobs.result:
        raise Unsuitable(f"results {values} are out of range")
    computed = operations_of(lines)
    if len(computed) < min(knobs.operations):
        raise Unsuitable(f"{len(computed)} operations are too few")
    late = (sketch.irrelevant,) if cue == "distractor" else ()
    question = " ".join([*sketch.facts, *late, lines[-1].asks])
    gold = lines[-1].operation.value
    answer = "\n".join([*map(str, lines), f"#### {gold}"])
    return Problem(question, answer, gold, family.name, computed, cue)


def _without_repetition(candidates: Iterator[Problem]) -> Iterator[Problem]:
    seen: set[str] = set()
    for problem in candidates:
        if problem.question not in seen:
            seen.add(problem.question)
            yield problem
