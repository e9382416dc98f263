"""What LoopCD and LoopGuidance do to a step's logits: free of vLLM, so that it can be read and tested alone.

Rows that do not ask for them are not looked at. On a CPU neither are most of those that ask for LoopCD: where one token is
plausible it is the answer whatever the amateur says, and where several are, the head is applied to those few tokens. To find
out takes asking the device for counts; on a GPU the host would wait for the whole pass with that, so there the amateurs' heads
are applied to all tokens, and the host goes on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from loopcd.decoding import rules
from loopcd.serving.vllm.served import Contrast, Guidance

MANY = 4096  # beyond so many plausible tokens in a step the whole head is applied, instead of their rows of it
Array = np.ndarray[Any, Any]


class Amateurs(Protocol):
    """The readouts of the amateur loops that a pass carries; a readout is known by its row and the loop's place among them."""

    def amateur_logits(self, rows: Tensor, places: Tensor) -> Tensor:
        """[n, vocab], of the readouts at rows[i], places[i]."""
        ...

    def token_logits(self, rows: Sequence[int], places: Sequence[int], owners: Sequence[int], tokens: Sequence[int]) -> Array:
        """[n], of the token tokens[i] by the readout at rows[owners[i]], places[owners[i]]; no row occurs twice."""
        ...


@dataclass(frozen=True)
class Asked:
    """A row's setting. `bare`: nothing but an argmax comes after, so that this is all that has to be right. `resumed`: the
    request had tokens of its own when it came into the batch, because it was preempted."""

    setting: Contrast | Guidance
    bare: bool = False
    resumed: bool = False


@dataclass(frozen=True)
class StepPlan:
    """The rows of a batch that ask for one of the two methods."""

    rows: list[int]  # [n]
    places: list[int]  # [n], of their loops among those that the pass carries
    asked: list[Asked]  # [n]
    whole: bool  # they are all rows, in order
    device: torch.device

    @classmethod
    def of(
        cls, kind: type[Contrast | Guidance], asking: Sequence[Asked | None], carried: Sequence[int], device: torch.device
    ) -> "StepPlan | None":
        """Of what each row of the batch asks for (None: nothing), where the pass carries these amateur loops."""
        found = {row: each for row, each in enumerate(asking) if each and isinstance(each.setting, kind)}
        places = [carried.index(each.setting.amateur_loop) for each in found.values()]
        return cls(list(found), places, list(found.values()), len(found) == len(asking), device) if found else None

    @cached_property
    def at(self) -> Tensor:
        """[2, n], rows and places."""
        return torch.tensor([self.rows, self.places], device=self.device)

    @cached_property
    def numbers(self) -> tuple[Tensor, ...]:
        """What the settings have besides a loop, each [n, 1]: strength and plausibility, or weight and adaptive."""
        values = [astuple(each.setting)[1:] for each in self.asked]
        return torch.tensor(values, device=self.device, dtype=torch.float32).split(1, dim=1)

    @cached_property
    def floor(self) -> Tensor:
        """[n, 1], log α: how far behind the best logit plausible ones may be."""
        return torch.tensor([[math.log(cast(Contrast, each.setting).plausibility)] for each in self.asked])

    @cached_property
    def bare(self) -> bool:
        return all(each.bare for each in self.asked)


def guide(logits: Tensor, plan: StepPlan, amateurs: Amateurs) -> None:
    """Replace the logits of the plan's rows by LoopGuidance's scores, in place; what was impossible stays so."""
    (rows, places), (weight, adaptive) = plan.at, plan.numbers
    expert = logits[rows]
    early = amateurs.amateur_logits(rows, places).float()
    weight = torch.where(adaptive > 0, weight * rules.adaptive_weight(expert, 1.0), weight)
    scores = rules.loop_guidance(expert, early, weight)
    logits[rows] = torch.where(expert > rules.IMPOSSIBLE, scores, expert)


def densely(logits: Tensor, plan: StepPlan, amateurs: Amateurs) -> None:
    """Replace the logits of the plan's rows by LoopCD's scores, in place; a row in which earlier processors left nothing
    possible stays as it is."""
    (rows, places), (strength, plausibility) = plan.at, plan.numbers
    expert = logits[rows]
    amateur = amateurs.amateur_logits(rows, places).float()
    possible = expert > rules.IMPOSSIBLE
    allowed = rules.plausible(expert, plausibility) & possible
    scores = rules.contrast(expert, amateur, strength, allowed)
    logits[rows] = torch.where(possible.any(dim=-1, keepdim=True), scores, expert)


def lazily(logits: Tensor, plan: StepPlan, amateurs: Amateurs) -> None:
    """The same on a CPU, computed only in rows where it matters, and there for the plausible tokens.

    As soon as there are few numbers, in numpy on the same memory and in Python: steps of small models are short, and torch's
    operations take long to call.
    """
    expert = logits if plan.whole else logits[plan.rows]  # [n, vocab]
    best = expert.amax(dim=1, keepdim=True)
    allowed = expert >= best + plan.floor  # everything, in a row where nothing is possible
    count = int(allowed.count_nonzero())
    if plan.bare and count == len(allowed):
        return
    if count > MANY:
        densely(logits, plan, amateurs)
        return
    tops = best.flatten().tolist()
    found: dict[int, list[int]] = {}  # by its place in the plan, a row's plausible tokens, ascending
    for at, token in (divmod(each, allowed.shape[1]) for each in np.flatnonzero(allowed.numpy()).tolist()):
        if tops[at] > rules.IMPOSSIBLE:
            found.setdefault(at, []).append(token)
    every = logits.numpy()
    scores = _scores(every, plan, {at: tokens for at, tokens in found.items() if len(tokens) > 1}, amateurs)
    for at, tokens in found.items():
        if at in scores or not plan.asked[at].bare:  # a lone token is the answer, whatever the amateur says
            _write(every[plan.rows[at]], tokens, scores.get(at, [0.0]), plan.asked[at].bare)


def _scores(every: Array, plan: StepPlan, contested: Mapping[int, list[int]], amateurs: Amateurs) -> dict[int, list[float]]:
    """Of each contested row's plausible tokens."""
    if not contested:
        return {}
    rows, places = [plan.rows[at] for at in contested], [plan.places[at] for at in contested]
    owners = [number for number, tokens in enumerate(contested.values()) for _ in tokens]
    tokens = [token for each in contested.values() for token in each]
    expert = every[[rows[number] for number in owners], tokens].tolist()
    amateur = amateurs.token_logits(rows, places, owners, tokens).tolist()
    strengths = [cast(Contrast, plan.asked[at].setting).strength for at, each in contested.items() for _ in each]
    of_all = iter(map(rules.contrast_of, expert, amateur, strengths))
    return {at: list(islice(of_all, len(each))) for at, each in contested.items()}


def _write(row: Array, tokens: list[int], scores: list[float], bare: bool) -> None:
    """The scores of the plausible tokens into a row [vocab]; where it is bare, only which of them is best."""
    if bare:  # of equal scores the first, as an argmax over the vocabulary does
        row[tokens[scores.index(max(scores))]] = row.max() + 1
        return
    row[:] = rules.IMPOSSIBLE
    row[tokens] = scores - np.logaddexp.reduce(scores)
