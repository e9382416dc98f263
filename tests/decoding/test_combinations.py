"""Random combinations of the arguments of `generate` against a slow reading, both in float64: the same tokens.

LOOPCD_COMBINATIONS=2000 tries so many, LOOPCD_FIRST_COMBINATION=120 begins there.
"""

import os

import pytest

from decoding import slow as slowly
from decoding.combined import TIE, Combination, Tie, made_by_loopcd, slow_text
from decoding.slow import Slow
from loopcd.models import LoopedModel
from tools import MAKERS

COUNT = int(os.environ.get("LOOPCD_COMBINATIONS", "120"))
FIRST = int(os.environ.get("LOOPCD_FIRST_COMBINATION", "0"))
PARTS = 6  # so that several processes can share the work


@pytest.fixture(scope="module")
def exact() -> dict[str, tuple[LoopedModel, Slow]]:
    models = {name: make().double() for name, make in MAKERS.items()}
    return {name: (model, Slow(model)) for name, model in models.items()}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_combination_makes_what_a_slow_reading_makes(
    part: int, exact: dict[str, tuple[LoopedModel, Slow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowly, "CLEAR", TIE)
    wrong, ties, seeds = [], 0, range(FIRST + part, FIRST + COUNT, PARTS)
    for seed in seeds:
        case = Combination.drawn(seed)
        model, slow = exact[case.family]
        found = made_by_loopcd(case, model)
        try:
            wanted = [slow_text(case, slow, row, guess) for row, guess in enumerate(found)]
        except Tie:
            ties += 1
            continue
        if found != wanted:
            wrong.append(f"{case}\nmade   {found}\nwanted {wanted}")
    assert not wrong, f"{len(wrong)} of {len(seeds)}:\n" + "\n".join(wrong)
    assert ties <= len(seeds) // 10
