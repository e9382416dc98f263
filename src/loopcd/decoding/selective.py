"""LoopCD at some kinds of positions only, as in the paper's Table 5."""

import re
from typing import Any

import torch
from torch import Tensor

from loopcd.decoding import rules
from loopcd.decoding.engine import Reading
from loopcd.decoding.scoring import LoopScorer
from loopcd.models.stages import LoopedModel, LoopState

HARD_DROP = 1.5  # the paper's ε
KINDS = ("hard", "easy", "numeric", "operator")


def parse_kinds(where: str) -> frozenset[str]:
    """ "all" is no restriction; "hard numeric" is an intersection."""
    kinds = frozenset(re.split(r"[\s,&∩+]+", where.strip())) if isinstance(where, str) else frozenset({str(where)})
    if kinds == {"all"}:
        return frozenset()
    unknown = kinds - set(KINDS)
    if unknown or {"hard", "easy"} <= kinds or {"numeric", "operator"} <= kinds:
        raise ValueError(
            f'where={where!r}: "all", "hard", "easy", "numeric", "operator", or one of the first two with one of the '
            'last two, as in "hard numeric"'
        )
    return kinds


class SelectiveScorer(LoopScorer):
    """LoopCD at some kinds of positions only: hard or easy by the margins of all loops, numeric or operator by the text."""

    def __init__(self, model: LoopedModel, kinds: frozenset[str], tokenizer: Any, num_loops: int, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.kinds, self.tokenizer, self.num_loops = kinds, tokenizer, num_loops
        self.by_loop: dict[int, Any] = {}

    def watch(self, state: LoopState) -> None:
        super().watch(state)
        if self.kinds & {"hard", "easy"} and state.loop < self.num_loops:
            own = self.parked[-1] if state.loop == self.amateur_loop and self.parked else None
            self.by_loop[state.loop] = self.model.park(state, self.coda) if own is None else own

    def where(self, reading: Reading, contested: Tensor) -> Tensor:
        if not bool(contested.any()):
            return contested
        winner = reading.logits.argmax(dim=-1)
        chosen = contested.clone()
        if self.kinds & {"numeric", "operator"}:
            kind = kind_numeric if "numeric" in self.kinds else kind_operator
            texts = (self.tokenizer.decode([token]) for token in winner.tolist())
            chosen &= torch.tensor([kind(text) for text in texts], device=chosen.device)
        if self.kinds & {"hard", "easy"} and bool(chosen.any()):
            hard = self._drop(reading, winner) >= HARD_DROP
            chosen &= hard if "hard" in self.kinds else ~hard
        return chosen

    def _drop(self, reading: Reading, winner: Tensor) -> Tensor:
        early = [self.model.head(self.model.read_parked(parked)[:, -1]).float() for _, parked in sorted(self.by_loop.items())]
        margins = [rules.margin(logits, winner) for logits in (*early, reading.logits)]
        return rules.confidence_drop(torch.stack(margins, dim=-1))


_NUMERIC = re.compile(r"[\d.,]*\d[\d.,]*")
_OPERATOR = re.compile(r"[-+*/=<>^%−×÷·]+")


def kind_numeric(text: str) -> bool:
    """Digits, with separators or not."""
    return bool(_NUMERIC.fullmatch(text.strip()))


def kind_operator(text: str) -> bool:
    """Nothing but signs of arithmetic."""
    return bool(_OPERATOR.fullmatch(text.strip()))
