"""What LoopCD and LoopGuidance do to a step's logits: free of vLLM, so that it can be read and tested alone.

Rows that do not ask for them are not looked at. On a CPU neither are most of those that ask for LoopCD: where one token is
plausible it is the answer whatever the amateur says, and where several are, the head is applied to those few tokens. To find
out takes asking the device for counts; on a GPU the host would wait for the whole pass with that, so there the amateurs' heads
are applied to all tokens, and the host goes on.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

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


Asking = Sequence[Asked | None]  # what each row of a batch asks for; None: nothing


@dataclass(frozen=True)
class Contrasts:
    """The rows of a batch that are contrasted."""

    rows: list[int]  # [n]
    places: list[int]  # [n]
    settings: tuple[Contrast, ...]
    bare: list[bool]  # [n]
    whole: bool  # they are all rows, in order

    @classmethod
    def of(cls, asking: Asking, carried: Sequence[int]) -> "Contrasts | None":
        """`carried` are the amateur loops that the pass carries."""
        every = [(row, each.setting, each.bare) for row, each in enumerate(asking) if each]
        found = [(row, setting, bare) for row, setting, bare in every if isinstance(setting, Contrast)]
        if not found:
            return None
        return cls(
            [row for row, _, _ in found],
            [carried.index(setting.amateur_loop) for _, setting, _ in found],
            tuple(setting for _, setting, _ in found),
            [bare for _, _, bare in found],
            len(found) == len(asking),
        )

    @cached_property
    def floor(self) -> Tensor:
        """[n, 1], log α: how far behind the best logit plausible ones may be."""
        return torch.tensor([[math.log(each.plausibility)] for each in self.settings])

    @cached_property
    def all_bare(self) -> bool:
        return all(self.bare)

    def on(self, device: torch.device) -> "DeviceContrasts":
        numbers = [(each.strength, each.plausibility) for each in self.settings]
        both = torch.tensor(numbers, device=device, dtype=torch.float32)
        at = torch.tensor([self.rows, self.places], device=device)
        return DeviceContrasts(*at, *both.split(1, dim=1))


@dataclass(frozen=True)
class DeviceContrasts:
    """The same on a device."""

    rows: Tensor  # [n]
    places: Tensor  # [n]
    strength: Tensor  # [n, 1]
    plausibility: Tensor  # [n, 1]


@dataclass(frozen=True)
class Guided:
    """The rows of a batch that are guided."""

    rows: Tensor  # [n]
    places: Tensor  # [n]
    weight: Tensor  # [n, 1]
    adaptive: Tensor  # [n, 1]

    @classmethod
    def of(cls, asking: Asking, carried: Sequence[int], device: torch.device) -> "Guided | None":
        found = [(row, each.setting) for row, each in enumerate(asking) if each and isinstance(each.setting, Guidance)]
        if not found:
            return None
        return cls(
            torch.tensor([row for row, _ in found], device=device),
            torch.tensor([carried.index(guidance.amateur_loop) for _, guidance in found], device=device),
            torch.tensor([[guidance.weight] for _, guidance in found], device=device, dtype=torch.float32),
            torch.tensor([[guidance.adaptive] for _, guidance in found], device=device),
        )


def guide(logits: Tensor, plan: Guided, amateurs: Amateurs) -> None:
    """Replace the logits of the plan's rows by LoopGuidance's scores, in place; what was impossible stays so."""
    expert = logits[plan.rows]
    early = amateurs.amateur_logits(plan.rows, plan.places).float()
    weight = torch.where(plan.adaptive, plan.weight * rules.adaptive_weight(expert, 1.0), plan.weight)
    scores = rules.loop_guidance(expert, early, weight)
    logits[plan.rows] = torch.where(expert > rules.IMPOSSIBLE, scores, expert)


def densely(logits: Tensor, plan: DeviceContrasts, amateurs: Amateurs) -> None:
    """Replace the logits of the plan's rows by LoopCD's scores, in place; a row in which earlier processors left nothing
    possible stays as it is."""
    expert = logits[plan.rows]
    amateur = amateurs.amateur_logits(plan.rows, plan.places).float()
    possible = expert > rules.IMPOSSIBLE
    allowed = rules.plausible(expert, plan.plausibility) & possible
    scores = rules.contrast(expert, amateur, plan.strength, allowed)
    logits[plan.rows] = torch.where(possible.any(dim=-1, keepdim=True), scores, expert)


def lazily(logits: Tensor, plan: Contrasts, amateurs: Amateurs) -> None:
    """The same on a CPU, computed only in rows where it matters, and there for the plausible tokens.

    As soon as there are few numbers, in numpy on the same memory and in Python: steps of small models are short, and torch's
    operations take long to call.
    """
    expert = logits if plan.whole else logits[plan.rows]  # [n, vocab]
    best = expert.amax(dim=1, keepdim=True)
    allowed = expert >= best + plan.floor  # everything, in a row where nothing is possible
    count = int(allowed.count_nonzero())
    if plan.all_bare and count == len(allowed):
        return
    if count > MANY:
        densely(logits, plan.on(logits.device), amateurs)
        return
    found: dict[int, list[int]] = {}  # by its place in the plan, a row's plausible tokens, ascending
    for at, token in (divmod(each, allowed.shape[1]) for each in np.flatnonzero(allowed.numpy()).tolist()):
        found.setdefault(at, []).append(token)
    every, tops = logits.numpy(), best.flatten().tolist()
    possible = {at: tokens for at, tokens in found.items() if tops[at] > rules.IMPOSSIBLE}
    contested = {at: tokens for at, tokens in possible.items() if len(tokens) > 1}
    scores = _scores(every, plan, contested, amateurs) if contested else iter(())
    for at, tokens in possible.items():
        if at in contested:
            _write(every[plan.rows[at]], tokens, next(scores), plan.bare[at])
        elif not plan.bare[at]:  # a lone token is the answer, whatever the amateur says
            _write(every[plan.rows[at]], tokens, [0.0], bare=False)


def _scores(every: Array, plan: Contrasts, found: Mapping[int, list[int]], amateurs: Amateurs) -> Iterator[list[float]]:
    """Of each contested row's plausible tokens."""
    rows = [plan.rows[at] for at in found]
    owners = [number for number, tokens in enumerate(found.values()) for _ in tokens]
    tokens = [token for each in found.values() for token in each]
    expert = every[[rows[number] for number in owners], tokens].tolist()
    amateur = amateurs.token_logits(rows, [plan.places[at] for at in found], owners, tokens).tolist()
    strengths = [plan.settings[at].strength for at, each in found.items() for _ in each]
    scores = iter(map(rules.contrast_of, expert, amateur, strengths))
    return (list(islice(scores, len(each))) for each in found.values())


def _write(row: Array, tokens: list[int], scores: list[float], bare: bool) -> None:
    """The scores of the plausible tokens into a row [vocab]; where it is bare, only which of them is best."""
    if bare:  # of equal scores the first, as an argmax over the vocabulary does
        row[tokens[scores.index(max(scores))]] = row.max() + 1
        return
    row[:] = rules.IMPOSSIBLE
    row[tokens] = scores - np.logaddexp.reduce(scores)
