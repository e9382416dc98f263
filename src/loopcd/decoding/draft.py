"""Whether, how deep and how far to draft; `rounds` does it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopcd.decoding import checks
from loopcd.decoding.engine import Engine
from loopcd.models.stages import LoopedModel, loop_logits

LONGEST = 8  # tokens of a round, where the length is chosen by rule
PROBED = 128  # prompt tokens that the rule starts from
WRITTEN = 32  # tokens that it lets the model write


@dataclass(frozen=True)
class SelfDraft:
    """Draft by the first `loops` loops, `length` tokens a round; None: chosen by a rule from how the model agrees with itself.

    With `fallback` (default) nothing is drafted while so few drafts are accepted that it would cost time.
    """

    loops: int | None = None
    length: int | None = 4
    fallback: bool = True

    def __post_init__(self) -> None:
        if self.loops is not None:
            checks.whole("loops", self.loops, 1)
        if self.length is not None:
            checks.whole("length", self.length, 2)

    def plan(self, model: LoopedModel, num_loops: int, prompt: Tensor) -> "Plan":
        """The loops and the length for this model; `prompt` [time] is what the rule looks at."""
        if self.loops is not None and self.loops >= num_loops:
            raise ValueError(
                f"draft with loops={self.loops}: from 1 to {num_loops - 1}, one less than the {num_loops} loops run"
            )
        if num_loops == 1:
            return Plan(1, 1)
        if self.loops is not None and self.length is not None:
            return Plan(self.loops, self.length)
        agreement = _agreement(model, num_loops, prompt)
        loops = range(1, num_loops) if self.loops is None else (self.loops,)
        lengths = range(2, LONGEST + 1) if self.length is None else (self.length,)
        plans = [Plan(early, length) for early in loops for length in lengths]
        return max(plans, key=lambda plan: plan.gain(model, num_loops, agreement[plan.loops - 1]))


@dataclass(frozen=True)
class Plan:
    loops: int
    length: int

    def gain(self, model: LoopedModel, num_loops: int, agreement: float) -> float:
        """Expected speed over plain decoding, if a draft is accepted with probability `agreement`.

        A round makes (1 − p^k) / (1 − p) tokens. It costs k beginnings and k passes of `loops` loops, all but the last with a
        readout, and one pass of the remaining loops, which is a little dearer for several tokens than for one.
        """
        beginning, readout = _costs(model)
        p, k = min(agreement, 0.999), self.length
        made = (1 - p**k) / (1 - p)
        together = 1 + 0.06 * (k - 1)
        cost = k * (beginning + self.loops) + (k - 1) * readout + (num_loops - self.loops + readout) * together
        return made * (beginning + num_loops + readout) / cost


def _costs(model: LoopedModel) -> tuple[float, float]:
    """The weights that a beginning reads, and those of a readout and the head, as shares of those that a loop reads."""
    config = model.config
    width, wide = config.hidden_size, config.intermediate_size
    layer = width * (4 * width + 3 * wide)
    loop_layers = len(model.loop_slots(1))
    prelude, coda = getattr(config, "n_layers_in_prelude", 0), getattr(config, "n_layers_in_coda", 0)
    return prelude / loop_layers, (coda * layer + config.vocab_size * width) / (loop_layers * layer)


_measured: "WeakKeyDictionary[LoopedModel, dict[int, list[float]]]" = WeakKeyDictionary()


def _agreement(model: LoopedModel, num_loops: int, prompt: Tensor) -> list[float]:
    """How often the model stopped at loop 1, 2, … names the token that it names at the end; measured once for a model.

    It is measured on what the model itself writes, which is what drafts will be of; prompts are harder to foretell.
    """
    known = _measured.setdefault(model, {})
    if num_loops not in known:
        text = _continued(model, num_loops, prompt[-PROBED:])
        said = loop_logits(model, text, loops=range(1, num_loops + 1)).argmax(dim=-1)[0]  # [loop, time]
        written = said[:, min(len(prompt), PROBED) - 1 : -1]
        known[num_loops] = (written == written[-1]).float().mean(dim=1).tolist()
    return known[num_loops]


@torch.no_grad()
def _continued(model: LoopedModel, num_loops: int, prompt: Tensor) -> Tensor:
    """The prompt and up to `WRITTEN` tokens that the model puts after it: [1, time]."""
    engine, text, new = Engine(model, num_loops), prompt[None], prompt[None]
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    for _ in range(min(WRITTEN, model.max_context - len(prompt))):
        new = engine.read(new)[0].logits.argmax(dim=-1, keepdim=True)
        text = torch.cat([text, new], dim=1)
        if ends is not None and bool(torch.isin(new, torch.tensor(ends, device=new.device)).any()):
            break
    return text


@dataclass
class DraftReport:
    """What drafting did in one job."""

    loops: int
    length: int
    rounds: int = 0
    plain: int = 0  # passes without a draft, the prompt's included
    proposed: int = 0  # drafted tokens of rows that had not ended
    accepted: int = 0
    emitted: int = 0  # tokens that the rounds gave
    near_ties: int = 0

    @property
    def acceptance(self) -> float:
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def accepted_length(self) -> float:
        """Tokens that a round gave a row, on average."""
        row_rounds = self.proposed / max(1, self.length - 1)
        return self.emitted / row_rounds if row_rounds else 0.0


@dataclass
class Pace:
    """Whether to draft: not while too few drafts are accepted to pay for the rounds."""

    break_even: float  # tokens that a round must give
    recent: float = 0.0  # of the last rounds, a running mean
    trials: int = 0  # rounds since the last pause
    wait: int = 0  # plain passes until the next trial
    pause: int = 32

    def drafting(self) -> bool:
        if self.wait > 0:
            self.wait -= 1
            return False
        return True

    def saw(self, made: float) -> None:
        self.recent = made if self.trials == 0 else 0.7 * self.recent + 0.3 * made
        self.trials += 1
        if self.recent < self.break_even and (self.trials > 1 or made <= 1):
            self.wait, self.trials = self.pause, 0
            self.pause = min(2 * self.pause, 1024)
        elif self.trials >= 8:
            self.pause = 32


_paces: "WeakKeyDictionary[LoopedModel, dict[tuple[int, Plan], Pace]]" = WeakKeyDictionary()


def pace_of(model: LoopedModel, num_loops: int, plan: Plan) -> Pace:
    """What earlier texts taught about drafting with this model stays known."""
    break_even = plan.length / max(1.0, plan.gain(model, num_loops, 1.0))
    return _paces.setdefault(model, {}).setdefault((num_loops, plan), Pace(break_even))


def checked_draft(draft: Any, supported: bool, method: str, refused: Sequence[str] = ()) -> None:
    if draft is None:
        return
    if not isinstance(draft, SelfDraft):
        raise ValueError(f"draft={draft!r}: a SelfDraft, or None")
    if not supported:
        raise ValueError(f"draft={draft!r}: {method} cannot be drafted; Greedy and LoopCD can")
    if refused:
        raise ValueError(f"draft={draft!r} cannot be combined with {' and '.join(refused)}")
