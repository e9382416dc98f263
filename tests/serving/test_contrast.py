"""LoopCD on a step's logits: rows and tokens that are left out do not matter."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loopcd.decoding import rules
from loopcd.serving.vllm import contrast
from loopcd.serving.vllm.contrast import Array, Asked, StepPlan
from loopcd.serving.vllm.served import Contrast, Guidance

CPU = torch.device("cpu")
LONE, BOTH = [9.0, 0.0, 0.0, -9.0], [2.0, 1.9, -8.0, -9.0]  # logits with one plausible token, and with two


class Amateurs:
    """Two carried loops; remembers what it was asked for."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.calls = logits, []  # [rows, loops, vocab]

    def amateur_logits(self, rows: Tensor, places: Tensor) -> Tensor:
        self.calls.append((rows.tolist(), None))
        return self.logits[rows, places]

    def token_logits(self, rows: Sequence[int], places: Sequence[int], owners: Sequence[int], tokens: Sequence[int]) -> Array:
        assert len(set(rows)) == len(rows)
        self.calls.append(([rows[each] for each in owners], tokens))
        return self.logits.numpy()[rows, places][owners, tokens]


def plan(asked: list[Asked | None], kind: type[Contrast | Guidance] = Contrast) -> StepPlan:
    made = StepPlan.of(kind, asked, (1, 3), CPU)
    assert made is not None
    return made


def test_only_contested_rows_that_asked_reach_the_head_and_there_only_plausible_tokens() -> None:
    amateurs = Amateurs(torch.tensor([[[0.0, -5.0, 0.0, 0.0]] * 2] * 4))
    logits = torch.tensor([BOTH, LONE, BOTH, LONE])
    asked = Asked(Contrast(1, 0.5), bare=True)
    found = logits.clone()
    contrast.lazily(found, plan([None, asked, asked, None]), amateurs)
    assert amateurs.calls == [([2, 2], [0, 1])]
    assert found[[0, 1, 3]].equal(logits[[0, 1, 3]])
    assert found[2].argmax() == 1


def test_where_nothing_is_contested_no_head_is_applied() -> None:
    amateurs = Amateurs(torch.zeros(2, 2, 4))
    logits = torch.tensor([LONE, LONE])
    found = logits.clone()
    contrast.lazily(found, plan([Asked(Contrast(1, 0.5), bare=True)] * 2), amateurs)
    assert amateurs.calls == [] and found.equal(logits)


def test_what_comes_after_an_argmax_is_kept_to_the_plausible_tokens() -> None:
    amateurs = Amateurs(torch.zeros(2, 2, 4))
    found = torch.tensor([LONE, LONE])
    contrast.lazily(found, plan([Asked(Contrast(1, 0.5), bare=True), Asked(Contrast(1, 0.5))]), amateurs)
    assert found[0].tolist() == LONE and found[1].tolist() == [0.0, *[rules.IMPOSSIBLE] * 3]


def test_many_plausible_tokens_take_the_whole_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrast, "MANY", 1)
    amateurs = Amateurs(torch.randn(1, 2, 4))
    found, wanted = torch.tensor([BOTH]), torch.tensor([BOTH])
    asked = plan([Asked(Contrast(3, 0.5))])
    contrast.lazily(found, asked, amateurs)
    contrast.densely(wanted, asked, amateurs)
    assert amateurs.calls == [([0], None), ([0], None)]
    torch.testing.assert_close(found, wanted)


settings = st.builds(Contrast, st.sampled_from([1, 3]), st.floats(0, 5), st.floats(0.001, 1))
rows = st.lists(st.none() | st.builds(Asked, settings, st.booleans()), min_size=1, max_size=6).filter(any)


@given(rows, st.integers(0, 10**6), st.integers(0, 9))
def test_the_lazy_form_is_the_dense_one(asked: list[Any], seed: int, banned: int) -> None:
    """In every row that is contrasted; a bare row with one plausible token keeps its best token."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(len(asked), 20, generator=generator)
    logits[:, :banned] = rules.IMPOSSIBLE
    logits[0, :] = rules.IMPOSSIBLE if seed % 3 == 0 else logits[0]  # nothing at all is allowed
    amateurs = Amateurs(torch.randn(len(asked), 2, 20, generator=generator))
    dense, masked, bare = logits.clone(), logits.clone(), logits.clone()
    contrast.densely(dense, plan(asked), amateurs)
    contrast.lazily(masked, plan([each and replace(each, bare=False) for each in asked]), amateurs)
    contrast.lazily(bare, plan(asked), amateurs)
    torch.testing.assert_close(masked, dense)
    assert bare.argmax(dim=-1).equal(dense.argmax(dim=-1))


def test_guided_rows_are_those_of_the_formula_and_the_others_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, early = torch.randn(4, 6, generator=generator), torch.randn(4, 2, 6, generator=generator)
    logits[1, 2] = rules.IMPOSSIBLE
    logits[3] = rules.IMPOSSIBLE  # nothing at all is allowed
    fixed, adaptive = Asked(Guidance(1, 0.5, False)), Asked(Guidance(3, 2.0, True))
    found = logits.clone()
    contrast.guide(found, plan([None, fixed, adaptive, adaptive], Guidance), Amateurs(early))
    first, second, *_ = logits[2].softmax(dim=-1).sort(descending=True).values
    expected = logits.clone()
    expected[1] += 0.5 * (logits[1] - early[1, 0])
    expected[2] += 2 * (1 - (first - second)) * (logits[2] - early[2, 1])
    torch.testing.assert_close(found, expected)
