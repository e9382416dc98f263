"""What LoopCD and LoopGuidance do to a step's logits: free of vLLM, so that it can be read and tested alone.

Rows that do not ask for them are not looked at. On a CPU neither are most of those that ask for LoopCD: where one token is
plausible it is the answer whatever the amateur says, and where several are, the head is applied to those few tokens. To find
out takes asking the device for counts; on a GPU the host would wait for the whole pass with that, so there the amateurs' heads
are applied to all tokens, and the host goes on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
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

    def token_logits(self, rows: Array, places: Array, tokens: Array) -> Array:
        """[n], of the token tokens[i] by the readout at rows[i], places[i]."""
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

    rows: Array  # [n]
    places: Array  # [n]
    settings: tuple[Contrast, ...]
    bare: Array  # [n]
    whole: bool  # they are all rows, in order

    @classmethod
    def of(cls, asking: Asking, carried: Sequence[int]) -> "Contrasts | None":
        """`carried` are the amateur loops that the pass carries."""
        every = [(row, each.setting, each.bare) for row, each in enumerate(asking) if each]
        found = [(row, setting, bare) for row, setting, bare in every if isinstance(setting, Contrast)]
        if not found:
            return None
        return cls(
            np.array([row for row, _, _ in found]),
            np.array([carried.index(setting.amateur_loop) for _, setting, _ in found]),
            tuple(setting for _, setting, _ in found),
            np.array([bare for _, _, bare in found]),
            len(found) == len(asking),
        )

    @cached_property
    def floor(self) -> Array:
        """[n, 1], log α: how far behind the best logit plausible ones may be."""
        return np.array([[math.log(each.plausibility)] for each in self.settings], dtype=np.float32)

    @cached_property
    def strength(self) -> Array:
        return np.array([each.strength for each in self.settings], dtype=np.float32)  # [n]

    @cached_property
    def all_bare(self) -> bool:
        return bool(self.bare.all())

    def on(self, device: torch.device) -> "DeviceContrasts":
        numbers = [(each.strength, each.plausibility) for each in self.settings]
        both = torch.tensor(numbers, device=device, dtype=torch.float32)
        places = (torch.from_numpy(each).to(device) for each in (self.rows, self.places))
        return DeviceContrasts(*places, *both.split(1, dim=1))


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

    In numpy, on the same memory: steps of small models are short, and torch's operations take longer to call.
    """
    every = logits.numpy()  # [rows, vocab]
    expert = every if plan.whole else every[plan.rows]
    best = expert.max(axis=1, keepdims=True)
    allowed = expert >= best + plan.floor  # everything, in a row where nothing is possible
    if plan.all_bare and np.count_nonzero(allowed) == len(allowed):
        return
    at, tokens = allowed.nonzero()
    if len(tokens) > MANY:
        densely(logits, plan.on(logits.device), amateurs)
        return
    several = np.bincount(at, minlength=len(allowed)) > 1
    touched = (best[:, 0] > rules.IMPOSSIBLE) & (several | ~plan.bare)
    at, tokens = at[touched[at]], tokens[touched[at]]
    amateur = amateurs.token_logits(plan.rows[at], plan.places[at], tokens)
    scores = rules.contrast_of(expert[at, tokens], amateur, plan.strength[at])
    for row, found in groupby(zip(at.tolist(), tokens.tolist(), scores.tolist(), strict=True), key=itemgetter(0)):
        _write(every[plan.rows[row]], [(token, score) for _, token, score in found], bool(plan.bare[row]))


def _write(row: Array, scores: list[tuple[int, float]], bare: bool) -> None:
    """The scores of the plausible tokens, ascending, into a row [vocab]; where it is bare, only which of them is best."""
    if bare:  # of equal scores `max` takes the first, as an argmax over the vocabulary does
        row[max(scores, key=itemgetter(1))[0]] = row.max() + 1
        return
    tokens, values = (list(each) for each in zip(*scores, strict=True))
    row[:] = rules.IMPOSSIBLE
    row[tokens] = values - np.logaddexp.reduce(values)
