"""LoopCD at some kinds of positions only, as in the paper's Table 5."""

import re
from typing import Any

import torch
from torch import Tensor

from loopcd.decoding import rules
from loopcd.decoding.early import EarlyLoop
from loopcd.decoding.reader import Reading
from loopcd.decoding.scoring import LoopScorer
from loopcd.models.stages import Coda, LoopedModel, wide

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

    def __init__(
        self,
        model: LoopedModel,
        amateur_loop: int,
        coda: Coda,
        kinds: frozenset[str],
        tokenizer: Any,
        num_loops: int,
        **settings: Any,
    ) -> None:
        super().__init__(model, amateur_loop, coda, **settings)
        self.kinds, self.tokenizer = kinds, tokenizer
        loops = range(1, num_loops) if kinds & {"hard", "easy"} else ()
        self.by_loop = [self.early if loop == amateur_loop else EarlyLoop(model, loop, coda) for loop in loops]
        self.watched = self.by_loop or self.watched

    def alike(self) -> None:
        return None  # it looks at all loops

    def where(self, reading: Reading, contested: Tensor) -> Tensor:
        if not bool(contested.any()):
            return contested
        chosen = contested.clone()
        winner = reading.logits.argmax(dim=-1)
        if self.kinds & {"numeric", "operator"}:
            kind = kind_numeric if "numeric" in self.kinds else kind_operator
            chosen &= torch.tensor([kind(self.tokenizer.decode([token])) for token in winner.tolist()])
        if self.by_loop and bool(chosen.any()):
            rows = chosen.nonzero().squeeze(1)
            hard = (self._drop(reading, winner, rows) >= HARD_DROP).cpu()
            chosen[rows] = hard if "hard" in self.kinds else ~hard
        return chosen

    def _drop(self, reading: Reading, winner: Tensor, rows: Tensor) -> Tensor:
        """[n], how far each of the n rows' confidence fell."""
        at = rows.to(winner.device)
        early = [wide(self.model.head(each.read(reading, rows))) for each in self.by_loop]
        margins = [rules.margin(logits, winner[at]) for logits in (*early, reading.logits[at])]
        return rules.confidence_drop(torch.stack(margins, dim=-1))


_NUMERIC = re.compile(r"[0-9]+")
_OPERATORS = frozenset("+-*/=x×÷%")


def kind_numeric(text: str) -> bool:
    """Digits and nothing else, blanks around them aside."""
    return bool(_NUMERIC.fullmatch(text.strip()))


def kind_operator(text: str) -> bool:
    """One sign of arithmetic, blanks around it aside; x is one."""
    return text.strip() in _OPERATORS
