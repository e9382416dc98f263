"""vLLM against the transformers side, token for token.

Both compute in float32, but sum in different orders. Where two tokens' scores are closer than that can tell, either may win,
and from there on the texts differ rightly. Such near ties are recognised by the transformers side's own scores, counted,
and allowed once among sixteen texts; every other difference is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from typing import Any

import torch

import loopcd
from loopcd.models import LoopedModel
from loopcd.models.stages import LoopState
from loopcd.serving.vllm.served import GUIDANCE, PREFIX, SWITCH

SMALL = {"dtype": "float32", "max_num_seqs": 16, "max_model_len": 256, "kv_cache_memory_bytes": 256 << 20}
NEAR = 1e-3  # logits of the two sides differ by about 1e-5


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    asked: dict[str, Any] | None  # the request's extra arguments

    @property
    def method(self) -> loopcd.Greedy | loopcd.LoopCD | loopcd.LoopGuidance:
        asked = self.asked or {}
        guidance = {key.removeprefix(f"{GUIDANCE}_"): value for key, value in asked.items() if key.startswith(f"{GUIDANCE}_")}
        if guidance or asked.get(GUIDANCE):
            return loopcd.LoopGuidance(**guidance)
        if not asked or asked.get(SWITCH) in (0, False):
            return loopcd.Greedy()
        return loopcd.LoopCD(**{key.removeprefix(PREFIX): value for key, value in asked.items() if key != SWITCH})


def settings(loops: Sequence[int]) -> list[dict[str, Any] | None]:
    """Greedy, LoopCD and LoopGuidance in eight forms; `loops` are two amateur loops that the engine was started for."""
    return [
        None,
        {SWITCH: True, f"{PREFIX}amateur_loop": loops[0]},
        {f"{PREFIX}strength": 0.7, f"{PREFIX}amateur_loop": loops[1]},
        {f"{PREFIX}strength": 1.0, f"{PREFIX}plausibility": 0.01, f"{PREFIX}amateur_loop": loops[0]},
        {SWITCH: False},
        {f"{GUIDANCE}_weight": 1.5, f"{GUIDANCE}_early_loop": loops[1]},
        {GUIDANCE: True, f"{GUIDANCE}_weight": 0.4, f"{GUIDANCE}_early_loop": loops[0], f"{GUIDANCE}_adaptive": False},
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
    model: LoopedModel,
    cases: Sequence[Case],
    found: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    cuts: Sequence[Sequence[int]] | None = None,
) -> None:
    """`cuts`: where each prompt was read in parts."""
    assert len(cases) == len(found) == len(expected)
    each_cut = cuts or [()] * len(cases)
    rows = zip(cases, found, expected, each_cut, strict=True)
    different = [(case, list(a), list(b), cut) for case, a, b, cut in rows if list(a) != list(b)]
    ties = [each for each in different if is_near_tie(model, *each)]
    assert [each for each in different if each not in ties] == []
    assert len(ties) <= max(1, len(cases) // 16), ties


def is_near_tie(model: LoopedModel, case: Case, found: list[int], expected: list[int], cuts: Sequence[int] = ()) -> bool:
    """Whether the first token that differs could have gone either way."""
    at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    if at is None:
        return False  # one is longer: an end was missed
    reader = Reader(model, case.method)
    scores, edge = reader.read_prompt(case.prompt, cuts)
    for token in expected[:at]:
        scores, edge = reader.read([token])
    a, b = found[at], expected[at]
    return min(float(edge[a]), float(edge[b]), abs(float(scores[a] - scores[b]))) < NEAR


class Reader:
    """The transformers side's stages by hand, for prompts that are read in parts: in each pass the amateur reads out first,
    through its own entries of that pass and the expert's of those before, and the expert last."""

    def __init__(self, model: LoopedModel, method: loopcd.Greedy | loopcd.LoopCD | loopcd.LoopGuidance) -> None:
        self.model, self.cache = model, model.new_cache()
        contrasted = isinstance(method, loopcd.LoopCD)
        self.amateur, self.strength = method.resolve(model) if contrasted else (None, 0.0)
        self.floor = log(method.plausibility) if contrasted else -inf
        self.guidance = method if isinstance(method, loopcd.LoopGuidance) else None
        self.amateur = self.guidance.early_loop if self.guidance else self.amateur

    @torch.no_grad()
    def read(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """[vocab] each: the scores of the next token, and how far each is from the edge of the plausible set."""
        state, early = self.model.begin(torch.tensor([ids]), self.cache), None
        for loop in range(1, self.model.num_loops + 1):
            state = self.model.advance(state)
            early = state if loop == self.amateur else early
        amateur = 0.0 if early is None else self._logits(early)
        expert = self._logits(state)
        if self.guidance is not None:
            first, second = expert.softmax(dim=-1).topk(2).values
            weight = self.guidance.weight * (1 - (first - second) if self.guidance.adaptive else 1)
            return expert + weight * (expert - amateur), torch.full_like(expert, inf)
        behind = expert - expert.max() - self.floor
        return (expert - self.strength * amateur).masked_fill(behind < 0, -inf), behind.abs()

    def read_prompt(self, prompt: Sequence[int], cuts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        edges = [0, *cuts, len(prompt)]
        return [self.read(prompt[a:b]) for a, b in pairwise(edges) if b > a][-1]

    def _logits(self, state: LoopState) -> torch.Tensor:
        return self.model.head(self.model.readout(state)[:, -1])[0].float()


def wanted_in_parts(model: LoopedModel, case: Case, tokens: int, cuts: Sequence[int], end: int | None = None) -> list[int]:
    """The tokens of a text whose prompt is read in parts."""
    reader, made = Reader(model, case.method), list[int]()
    scores, _ = reader.read_prompt(case.prompt, cuts)
    while True:
        made.append(int(scores.argmax()))
        if len(made) == tokens or made[-1] == end:
            return made
        scores, _ = reader.read(made[-1:])
