"""What LoopCD does to a step's logits, on plain tensors: free of vLLM, so that it can be read and tested alone.

Rows that do not ask for it are not looked at. On a CPU neither are most of those that do: where one token is plausible it is
the answer whatever the amateur says, and where several are, the head is applied to those few tokens. To find out takes asking
the device for counts; on a GPU the host would wait for the whole pass with that, so there the amateurs' heads are applied
to all tokens, and the host goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from loopcd.decoding import rules
from loopcd.serving.vllm.served import Setting

FEW = 512  # up to so many plausible tokens, their rows of the head are gathered; beyond, the whole head is cheaper


class Amateurs(Protocol):
    def amateur_logits(self, rows: Tensor, places: Tensor, tokens: Tensor | None = None) -> Tensor:
        """[n, vocab], or of the given tokens [n, tokens]: in row rows[i], of the loop at places[i] among those carried."""
        ...


@dataclass(frozen=True)
class Asked:
    """A row's setting. `bare`: nothing but an argmax comes after, so that a row with one plausible token may stay as it is.
    `resumed`: the request had tokens of its own when it came into the batch, because it was preempted."""

    setting: Setting
    bare: bool = False
    resumed: bool = False


@dataclass(frozen=True)
class Contrasts:
    """The rows of a batch that are contrasted."""

    whole: bool  # they are all rows, in order
    rows: Tensor  # [n]
    places: Tensor  # [n]
    strength: Tensor  # [n, 1]
    plausibility: Tensor  # [n, 1]
    bare: tuple[bool, ...]

    @classmethod
    def of(cls, asked: Sequence[Asked | None], carried: Sequence[int], device: torch.device) -> "Contrasts | None":
        """From what each row asks for (None: nothing) and the amateur loops that the pass carries."""
        found = [(row, each.setting, each.bare) for row, each in enumerate(asked) if each is not None]
        if not found:
            return None
        column = {"device": device, "dtype": torch.float32}
        return cls(
            len(found) == len(asked),
            torch.tensor([row for row, _, _ in found], device=device),
            torch.tensor([carried.index(setting.amateur_loop) for _, setting, _ in found], device=device),
            torch.tensor([[setting.strength] for _, setting, _ in found], **column),
            torch.tensor([[setting.plausibility] for _, setting, _ in found], **column),
            tuple(bare for _, _, bare in found),
        )

    def take(self, which: list[int]) -> "Contrasts":
        """Some of them."""
        kept = torch.tensor(which, device=self.rows.device)
        parts = (self.rows[kept], self.places[kept], self.strength[kept], self.plausibility[kept])
        return Contrasts(False, *parts, tuple(self.bare[each] for each in which))


def contrast(logits: Tensor, plan: Contrasts, amateurs: Amateurs) -> None:
    """Replace the rows' logits by LoopCD's scores, in place."""
    (lazily if logits.device.type == "cpu" else densely)(logits, plan, amateurs)


def densely(logits: Tensor, plan: Contrasts, amateurs: Amateurs) -> None:
    """All rows of the plan, all tokens; a row in which earlier processors left nothing possible stays as it is."""
    expert = logits[plan.rows]
    amateur = amateurs.amateur_logits(plan.rows, plan.places).float()
    possible = expert > rules.IMPOSSIBLE
    allowed = rules.plausible(expert, plan.plausibility) & possible
    scores = rules.contrast(expert, amateur, plan.strength, allowed)
    logits[plan.rows] = torch.where(possible.any(dim=-1, keepdim=True), scores, expert)


def lazily(logits: Tensor, plan: Contrasts, amateurs: Amateurs) -> None:
    """The same, computed only in rows where it matters and for tokens that are plausible there."""
    expert = logits if plan.whole else logits[plan.rows]
    allowed = rules.plausible(expert, plan.plausibility)  # everything, in a row where nothing is possible
    counts = allowed.sum(dim=-1).tolist()
    touched = [at for at, (count, bare) in enumerate(zip(counts, plan.bare, strict=True)) if count > 1 or not bare]
    if not touched:
        return
    plan, expert, allowed = plan.take(touched), expert[touched], allowed[touched]
    allowed &= expert > rules.IMPOSSIBLE
    tokens = allowed.any(dim=0).nonzero().squeeze(1)  # plausible in some row
    if not len(tokens):
        return
    some = tokens if len(tokens) <= FEW else None
    amateur = amateurs.amateur_logits(plan.rows, plan.places, some).float()
    amateur = amateur if some is not None else amateur[:, tokens]
    scores = torch.full_like(expert, rules.IMPOSSIBLE)
    scores[:, tokens] = rules.contrast(expert[:, tokens], amateur, plan.strength, allowed[:, tokens])
    logits[plan.rows] = torch.where(allowed.any(dim=-1, keepdim=True), scores, expert)
