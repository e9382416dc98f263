"""vLLM against the transformers side, token for token.

Both compute in float32, but sum in different orders. Where two tokens' scores are closer than that can tell, either may win,
and from there on the texts differ rightly. Such near ties are recognised by the transformers side's own scores, counted,
and allowed once among sixteen texts; every other difference is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch

import loopcd
from loopcd.models import LoopedModel
from loopcd.serving.vllm.served import PREFIX, SWITCH

NEAR = 1e-3  # logits of the two sides differ by about 1e-5


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    asked: dict[str, Any] | None  # the request's extra arguments

    @property
    def method(self) -> loopcd.Greedy | loopcd.LoopCD:
        if not self.asked or self.asked.get(SWITCH) in (0, False):
            return loopcd.Greedy()
        return loopcd.LoopCD(**{key.removeprefix(PREFIX): value for key, value in self.asked.items() if key != SWITCH})


def settings(loops: Sequence[int]) -> list[dict[str, Any] | None]:
    """Greedy and LoopCD in eight forms; `loops` are two amateur loops that the engine was started for."""
    return [
        None,
        {SWITCH: True, f"{PREFIX}amateur_loop": loops[0]},
        {f"{PREFIX}strength": 0.7, f"{PREFIX}amateur_loop": loops[1]},
        {f"{PREFIX}strength": 1.0, f"{PREFIX}plausibility": 0.01, f"{PREFIX}amateur_loop": loops[0]},
        {SWITCH: False},
        {f"{PREFIX}plausibility": 1.0, f"{PREFIX}amateur_loop": loops[1]},
        {f"{PREFIX}strength": 0, f"{PREFIX}amateur_loop": loops[0]},
        {f"{PREFIX}strength": 3.0, f"{PREFIX}plausibility": 0.3, f"{PREFIX}amateur_loop": loops[1]},
    ]


def sixteen(prompts: Sequence[Sequence[int]], loops: Sequence[int]) -> list[Case]:
    """Sixteen cases, neighbours asking for different things."""
    asked = settings(loops)
    return [Case(tuple(prompts[i % len(prompts)]), asked[i % len(asked)]) for i in range(16)]


def random_prompts(count: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Prompts of 3 to 40 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 41, (count,), generator=generator).tolist()
    return [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def wanted(model: LoopedModel, tokenizer: Any, cases: Sequence[Case], tokens: int) -> list[list[int]]:
    """What the transformers side makes of each case, alone."""
    return [loopcd.generate(model, tokenizer, [case.prompt], case.method, max_new_tokens=tokens)[0].token_ids for case in cases]


def assert_same(
    model: LoopedModel, cases: Sequence[Case], found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]
) -> None:
    assert len(cases) == len(found) == len(expected)
    different = [(case, list(a), list(b)) for case, a, b in zip(cases, found, expected, strict=True) if list(a) != list(b)]
    ties = [each for each in different if is_near_tie(model, *each)]
    assert [each for each in different if each not in ties] == []
    assert len(ties) <= max(1, len(cases) // 16), ties


@torch.no_grad()
def is_near_tie(model: LoopedModel, case: Case, found: list[int], expected: list[int]) -> bool:
    """Whether the first token that differs could have gone either way."""
    at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    if at is None:
        return False  # one is longer: an end was missed
    text = torch.tensor([[*case.prompt, *expected[:at]]])
    method = case.method
    if isinstance(method, loopcd.Greedy):
        scores, edge = loopcd.loop_logits(model, text, loops=[model.num_loops])[0, 0, -1], None
    else:
        amateur, strength = method.resolve(model)
        both = loopcd.loop_logits(model, text, loops=[amateur, model.num_loops])[0, :, -1]
        scores, edge = both[1] - strength * both[0], (both[1] - both[1].max() - log(method.plausibility)).abs()
    a, b = found[at], expected[at]
    if edge is not None and min(float(edge[a]), float(edge[b])) < NEAR:
        return True
    return abs(float(scores[a] - scores[b])) < NEAR
