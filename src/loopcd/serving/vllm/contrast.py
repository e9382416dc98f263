"""What LoopCD does to a step's logits: free of vLLM, so that it can be read and tested alone.

Rows that do not ask for it are not looked at. On a CPU neither are most of those that do: where one token is plausible it is
the answer whatever the amateur says, and where several are, the head is applied to those few tokens. To find out takes asking
the device for counts; on a GPU the host would wait for the whole pass with that, so there the amateurs' heads are applied
to all tokens, and the host goes on.
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
from loopcd.serving.vllm.served import Setting

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

    setting: Setting
    bare: bool = False
    resumed: bool = False


@dataclass(frozen=True)
class Contrasts:
    """The rows of a batch that are contrasted."""

    rows: Array  # [n]
    places: Array  # [n]
    asked: tuple[Asked, ...]
    whole: bool  # they are all rows, in order

    @classmethod
    def of(cls, asked: Sequence[Asked | None], carried: Sequence[int]) -> "Contrasts | None":
        """From what each row asks for (None: nothing) and the amateur loops that the pass carries."""
        found = [(row, each) for row, each in enumerate(asked) if each is not None]
        if not found:
            return None
        places = [carried.index(each.setting.amateur_loop) for _, each in found]
        rows = np.array([row for row, _ in found])
        return cls(rows, np.array(places), tuple(each for _, each in found), len(found) == len(asked))

    @cached_property
    def floor(self) -> Array:
        """[n, 1], log α: how far behind the best logit plausible ones may be."""
        return np.array([[math.log(each.setting.plausibility)] for each in self.asked], dtype=np.float32)

    @cached_property
    def strength(self) -> Array:
        return np.array([each.setting.strength for each in self.asked], dtype=np.float32)  # [n]

    @cached_property
    def bare(self) -> Array:
        return np.array([each.bare for each in self.asked])  # [n]

    @cached_property
    def all_bare(self) -> bool:
        return bool(self.bare.all())

    def on(self, device: torch.device) -> "Settings":
        numbers = [(each.setting.strength, each.setting.plausibility) for each in self.asked]
        both = torch.tensor(numbers, device=device, dtype=torch.float32)
        places = (torch.from_numpy(each).to(device) for each in (self.rows, self.places))
        return Settings(*places, *both.split(1, dim=1))


@dataclass(frozen=True)
class Settings:
    """The same on a device."""

    rows: Tensor  # [n]
    places: Tensor  # [n]
    strength: Tensor  # [n, 1]
    plausibility: Tensor  # [n, 1]


def densely(logits: Tensor, plan: Settings, amateurs: Amateurs) -> None:
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
        return densely(logits, plan.on(logits.device), amateurs)
    touched = (best[:, 0] > rules.IMPOSSIBLE) & ((np.bincount(at) > 1) | ~plan.bare)
    at, tokens = at[touched[at]], tokens[touched[at]]
    amateur = amateurs.token_logits(plan.rows[at], plan.places[at], tokens)
    scores = rules.contrast_of(expert[at, tokens], amateur, plan.strength[at])
    for row, found in groupby(zip(at.tolist(), tokens.tolist(), scores.tolist(), strict=True), key=itemgetter(0)):
        _write(every[plan.rows[row]], [(token, score) for _, token, score in found], plan.asked[row].bare)


def _write(row: Array, scores: list[tuple[int, float]], bare: bool) -> None:
    """The scores of the plausible tokens, ascending, into a row [vocab]; where it is bare, only which of them is best."""
    if bare:  # of equal scores `max` takes the first, as an argmax over the vocabulary does
        row[max(scores, key=itemgetter(1))[0]] = row.max() + 1
        return
    tokens, values = (list(each) for each in zip(*scores, strict=True))
    row[:] = rules.IMPOSSIBLE
    row[tokens] = values - np.logaddexp.reduce(values)
