"""Whether, how deep and how far to draft; `rounds` does it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopcd.decoding import checks
from loopcd.decoding.passes import PassCosts, alike, pass_costs
from loopcd.models.stages import LoopedModel, LoopState, wide

LONGEST = 8  # tokens of a round, where the length is chosen by rule
FARTHEST = 16  # and where a round ends by itself when the drafts are no longer sure
SURE = 0.5  # probability that a draft must have to be followed by another, where that tells right ones from wrong ones
FIXED = 4  # and where only the loops are given
PROBED = 64  # prompt tokens that are kept beside the written ones
ENOUGH = 24  # written tokens from which the rule learns
LATELY = 512  # drafts of which it knows how many were right
USUAL, WEIGHT = 0.97, 8  # how often trained loops agree, and how many tokens this belief weighs: one miss says little
CLEAR = 1.1  # an expected gain that is begun with; smaller ones may be less than the estimate's error
AGAIN = (2, 4)  # times the loops of a draft, after which a token of a wave is looked at again
AHEAD_BY = 1.2  # how far ahead of rounds a wave must be to be chosen: what it costs the host is told roughly
TRIAL = 2  # tokens of a round that only tries whether drafts are accepted
FIRST = 2  # plain passes by which a clocked pace begins
CLOCKED = 6  # rounds of which a clocked pace knows what they took before it gives drafts up; half, where few were accepted


@dataclass(frozen=True)
class SelfDraft:
    """Draft by the first `loops` loops, `length` tokens a round.

    Without `loops`, both are chosen by a rule from how the model agrees with itself; with `loops` alone a round has 4 tokens.

    The tokens are those of the undrafted method, but for choices that rounding decides: in float32 next to none, in bfloat16
    some, as between batches of different sizes (`loopcd bench --what exact --dtype bfloat16` counts them).
    With `wave` there are no rounds: each token begins as soon as the one before it has run `loops` loops, and is dropped when
    that one's last loop says otherwise; None: where the rule chooses, it chooses between waves and rounds for a single text.

    The rule looks at the first tokens that the model writes without a draft; what it learned is kept with the model. Where it
    finds that wrong drafts are mostly unlikely ones, a round ends with the first of these. With `fallback` (default) nothing
    is drafted while so few drafts are accepted that it would cost time.
    """

    loops: int | None = None
    length: int | None = None
    fallback: bool = True
    wave: bool | None = None

    def __post_init__(self) -> None:
        if self.wave is not None:
            checks.yes_or_no("wave", self.wave)
        if self.loops is not None:
            checks.whole("loops", self.loops, 1)
        if self.length is not None:
            checks.whole("length", self.length, 2)

    def candidates(self, num_loops: int) -> tuple[int, ...]:
        """The loops among which the rule chooses, beyond 4 every second: drafts of more than half of the loops hardly pay."""
        if self.loops is None:
            return tuple(loop for loop in range(1, max(2, num_loops // 2 + 1)) if loop <= 4 or loop % 2 == 0)
        if self.loops >= num_loops:
            raise ValueError(
                f"draft with loops={self.loops}: from 1 to {num_loops - 1}, one less than the {num_loops} loops run"
            )
        return (self.loops,)

    def agreement(self, model: LoopedModel, num_loops: int, loops: int, batch: int = 1) -> "Agreement | None":
        """What the rule has learned of drafts by so many loops; None where nobody asked it, or it has not seen enough."""
        known = None if self.loops is not None else self._learned(model, num_loops, batch)
        return None if known is None else known[self.candidates(num_loops).index(loops)]

    def _learned(self, model: LoopedModel, num_loops: int, batch: int) -> "list[Agreement] | None":
        """Of each candidate. Batches begin with what a single text taught, and learn by themselves: rows leave as their texts
        end, so that most rows of many are at a beginning, where drafts are wrong more often."""
        known, alone = _known(model), (num_loops, self.candidates(num_loops))
        if alone not in known or alike(batch) == 1:
            return known.get(alone)
        return known.setdefault((*alone, alike(batch)), [replace(each) for each in known[alone]])

    def plan(self, model: LoopedModel, num_loops: int, batch: int = 1, waves: bool | None = False) -> "DraftPlan | None":
        """The loops and the length for this model; None while the rule has not seen enough to choose.

        `waves` asks for a wave, or with None for whichever is faster.
        """
        candidates = self.candidates(num_loops)
        if self.loops is not None:
            return DraftPlan.wave_of(self.loops, num_loops) if waves else DraftPlan(self.loops, self.length or FIXED)
        agreement = self._learned(model, num_loops, batch)
        if agreement is None:
            return None
        lengths = range(2, LONGEST + 1) if self.length is None else (self.length,)
        alone = batch == 1 and self.length is None and self.fallback and model.device.type == "cpu"
        farther = range(2, FARTHEST + 1) if alone else ()
        passes, gains = pass_costs(model, batch), dict[DraftPlan, float]()
        timed = waves is None and passes.host is not None  # else nobody knows what the host's part of a tick is worth
        known = dict(zip(candidates, agreement, strict=True))
        for early, chance in known.items():
            again = [known[times * early].right for times in AGAIN if times * early in known]
            rounds = [DraftPlan(early, length) for length in lengths]
            rounds += [DraftPlan(early, length, sure=True) for length in farther if chance.sure < 1]
            for plan in (*(() if waves else rounds), *((DraftPlan.wave_of(early, num_loops),) if waves or timed else ())):
                gains[plan] = plan.gain(model, num_loops, chance, batch, passes, again)
        best = max(gains, key=lambda plan: gains[plan] / (AHEAD_BY if plan.wave and not waves else 1))
        # a token or two that loops named otherwise must not make the drafts deeper, which costs for sure
        near = [plan for plan in gains if plan.wave == best.wave and CLEAR * gains[plan] >= gains[best]]
        chosen = min(near, key=lambda plan: (plan.loops, -gains[plan]))
        return replace(chosen, expected=gains[chosen])


@dataclass(frozen=True)
class DraftPlan:
    loops: int
    length: int  # tokens of a round; of a wave, tokens in flight at most
    expected: float | None = None  # the gain that made the rule choose it
    wave: bool = False
    sure: bool = False  # a round ends early, with the first draft that is less likely than SURE

    @classmethod
    def wave_of(cls, loops: int, num_loops: int) -> "DraftPlan":
        """A wave that is as long as its loops let it be."""
        return cls(loops, -(-num_loops // loops), wave=True)

    def gain(
        self,
        model: LoopedModel,
        num_loops: int,
        agreement: "float | Agreement",
        batch: int = 1,
        passes: PassCosts | None = None,
        again: Sequence[float] = (),
    ) -> float:
        """Expected speed over plain decoding, if a draft is accepted with probability `agreement`, and what a wave's token says
        when it is looked at `again` with these.

        A round of k tokens makes 1 + p + p² + … + p^(k − 1) of them. It costs k beginnings and k passes of `loops` loops, all
        but the last with a readout, and one pass of the remaining loops, which is dearer for several tokens than for one
        (by `passes`, else by assumption: beginnings and readouts by the weights that they read).
        """
        passes = passes or PassCosts.assumed(batch)
        beginning, readout = passes.beginning, passes.readout
        if beginning is None or readout is None:
            beginning, readout = _costs(model)
        known = agreement if isinstance(agreement, Agreement) else Agreement(agreement)
        if self.wave:
            cost = self._wave_cost(
                num_loops, [min(chance, 0.999) for chance in (known.right, *again)], passes, beginning + readout
            )
            return (beginning + num_loops + readout) / cost
        drafts, made = self._round(known)
        cost = (1 + drafts) * (beginning + self.loops) + drafts * readout
        cost += (num_loops - self.loops + readout) * passes.of(1 + drafts)
        return made * (beginning + num_loops + readout) / cost

    def _round(self, known: "Agreement") -> tuple[float, float]:
        """How many tokens a round drafts, and how many it makes: one draft follows another, where that is asked for, while it
        is sure; a token is made while all before it were right."""
        right, going_on = (known.both, known.sure) if self.sure else (known.right, 1.0)
        drafts = range(self.length - 1)
        return sum(going_on**index for index in drafts), 1 + known.right * sum(right**index for index in drafts)

    def _wave_cost(self, num_loops: int, chances: Sequence[float], passes: PassCosts, gate: float) -> float:
        """What a token of a wave costs, in loops over one token.

        One token comes for every one that is begun, `loops` ticks after the one before it or less often where fewer may be in
        flight, if the first look at that one named it; later if only a later look did; and if none did, with a wave that grows
        anew for as many ticks as there are loops. What was begun behind a wrong one goes with it. A tick also has the host do
        something, which with small models takes longer than the loop.
        """
        host = passes.host or 0.0
        full, least = passes.of(self.length) + host, num_loops / self.length
        cost = begun = told = 0.0
        for times, chance in zip((1, *AGAIN), chances, strict=False):
            share, told = max(0.0, chance - told), max(told, chance)
            cost += share * max(times * self.loops, least) * full
            begun += share * min(times, self.length)
        growing = sum(passes.of(min(self.length, 1 + tick // self.loops)) + host for tick in range(num_loops))
        return cost + (1 - told) * growing + (begun + (1 - told) * self.length) * gate


def _costs(model: LoopedModel) -> tuple[float, float]:
    """The weights that a beginning reads, and those of a readout and the head, as shares of those that a loop reads."""
    config = model.config
    width, wide = config.hidden_size, config.intermediate_size
    layer = width * (4 * width + 3 * wide)
    loop_layers = len(model.loop_slots(1))
    prelude, coda = getattr(config, "n_layers_in_prelude", 0), getattr(config, "n_layers_in_coda", 0)
    return prelude / loop_layers, (coda * layer + config.vocab_size * width) / (loop_layers * layer)


@dataclass
class Agreement:
    """How often drafts by some loops were right, were sure, and were both, in so many that were seen."""

    right: float
    sure: float = 1.0
    both: float = -1.0  # as `right`, where it is not given
    seen: float = WEIGHT

    def __post_init__(self) -> None:
        self.both = self.right if self.both < 0 else self.both

    def add(self, right: bool, sure: bool) -> None:
        """One more draft was seen, after right ones."""
        self.seen = min(self.seen + 1, LATELY)
        for name, found in (("right", right), ("sure", sure), ("both", right and sure)):
            share = getattr(self, name)
            setattr(self, name, share + (found - share) / self.seen)


_agreements: "WeakKeyDictionary[LoopedModel, dict[tuple[Any, ...], list[Agreement]]]" = WeakKeyDictionary()


def _known(model: LoopedModel) -> dict[tuple[Any, ...], list[Agreement]]:
    return _agreements.setdefault(model, {})


class Probe:
    """Learns how often the model stopped at an early loop names the token that the method chooses, from one row's text.

    It keeps the early latents of passes that are run anyway, and reads them out all together when it has seen enough. It
    looks at what the model itself writes, which is what drafts will be of; prompts are harder to foretell.
    """

    def __init__(self, draft: SelfDraft, model: LoopedModel, num_loops: int, row: int) -> None:
        self.model, self.num_loops, self.row = model, num_loops, row
        self.latents: dict[int, list[Tensor]] = {loop: [] for loop in draft.candidates(num_loops)}  # each [time, width]
        self.read_ids: list[Tensor] = []  # each [time], where a readout needs them
        self.written: list[int] = []

    def watch(self, state: LoopState) -> None:
        if state.loop == min(self.latents) and (ids := self.model.ids_in(state.tokens.rotary)) is not None:
            self.read_ids.append(ids[self.row, -PROBED:].clone())
        if state.loop in self.latents:
            self.latents[state.loop].append(state.hidden[self.row, -PROBED:].clone())

    def add(self, token: int, last: bool) -> bool:
        """Take a token of the row, maybe its `last`; whether enough was seen, so that a plan can be made now."""
        self.written.append(token)
        if len(self.written) < (ENOUGH // 3 if last else ENOUGH):
            return False
        latents = torch.stack([torch.cat(each) for each in self.latents.values()])  # [loops, time, width]
        ids = torch.cat(self.read_ids).expand(len(latents), -1) if self.read_ids else None
        read = self.model.read_latents(latents, ids)[:, -len(self.written) :]
        chance, named = wide(self.model.head(read)).softmax(dim=-1).max(dim=-1)  # [loops, written]
        right, sure = named == torch.tensor(self.written, device=read.device), chance >= SURE
        found = [Agreement(USUAL, USUAL, USUAL) for _ in self.latents]
        for each, *told in zip(found, right.tolist(), sure.tolist(), strict=True):
            for pair in zip(*told, strict=True):
                each.add(*pair)
        _known(self.model)[self.num_loops, tuple(self.latents)] = found
        return True


@dataclass
class DraftReport:
    """What drafting did in one job."""

    loops: int  # 0 where the rule had not seen enough to choose
    length: int
    rounds: int = 0
    row_rounds: int = 0  # rounds of rows that had not ended
    plain: int = 0  # passes without a draft, the prompt's included
    proposed: int = 0  # drafted tokens of rows that had not ended
    accepted: int = 0
    emitted: int = 0  # tokens that the rounds gave
    near_ties: int = 0
    ticks: int = 0  # passes over all that a wave had in flight

    @property
    def acceptance(self) -> float:
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def accepted_length(self) -> float:
        """Tokens that a round gave a row, on average."""
        return self.emitted / self.row_rounds if self.row_rounds else 0.0


Times = deque[tuple[float, float]]  # seconds, and the tokens that a row got in them


@dataclass
class RoundPace:
    """How far to draft next: not at all while too few drafts are accepted to pay for the rounds.

    Whether drafts are accepted is tried by rounds of two tokens, which cost little; two in a row that were accepted are
    followed by rounds of the full length. What fails is left alone for a while, each time for longer. A pace that is `clocked`
    knows what tokens take with drafts and without, and goes by that instead: it begins by plain passes.
    """

    length: int  # tokens of a full round
    break_even: float  # tokens that one must give
    trusted: bool = False
    passed: int = 0  # trials in a row that were accepted
    recent: float = 0.0  # tokens of the last full rounds, a running mean
    wait: int = 0  # plain passes until the next trial
    pause: int = 32
    clocked: bool = False
    passes: Times = field(default_factory=lambda: deque(maxlen=CLOCKED))  # plain
    rounds: Times = field(default_factory=lambda: deque(maxlen=2 * CLOCKED))  # drafted

    def next(self) -> int:
        """Tokens of the next round; 1: nothing is drafted."""
        if self.wait > 0:
            self.wait -= 1
            return 1
        if self.clocked and self.trusted and len(self.passes) < FIRST:
            return 1
        return self.length if self.trusted else TRIAL

    def saw(self, made: float, drafted: int | None = None) -> None:
        """A round of the length that `next` told, or one that ended by itself after `drafted` tokens, gave so many to a row, on
        average."""
        if not self.trusted:
            self.passed = self.passed + 1 if made > (1 + TRIAL) / 2 else 0
            self.trusted, self.recent = self.passed == 2, float(self.length)
            if self.passed == 0:
                self._rest()
            return
        if drafted is not None:  # as a full round must give `break_even`, a shorter one must give less
            made *= self.break_even / (1 + (self.break_even - 1) * (drafted - 1) / (self.length - 1))
        self.recent = 0.7 * self.recent + 0.3 * made
        if self.clocked:
            return
        if self.recent < self.break_even:
            self._rest()
        elif made >= self.length:
            self.pause = 32

    def took(self, seconds: float, tokens: float, drafted: bool) -> None:
        """A plain pass, or a round of the full length, took so long and gave a row so many tokens."""
        (self.rounds if drafted else self.passes).append((seconds, tokens))
        enough = CLOCKED if self.recent >= self.break_even else CLOCKED // 2
        passes, rounds = list(self.passes), list(self.rounds)  # other threads may draft by the same model meanwhile
        if drafted and self.trusted and len(rounds) >= enough and passes:
            plain = median(spent for spent, _ in passes)
            if sum(spent for spent, _ in rounds) <= plain * sum(made for _, made in rounds):
                self.pause = 32
                return
            self.rounds.clear()
            self._rest()

    def _rest(self) -> None:
        self.trusted, self.passed = False, 0
        self.wait, self.pause = self.pause, min(2 * self.pause, 1024)


_paces: "WeakKeyDictionary[LoopedModel, dict[tuple[int, DraftPlan, int], RoundPace]]" = WeakKeyDictionary()


def pace_of(model: LoopedModel, num_loops: int, plan: DraftPlan, batch: int) -> RoundPace:
    """What earlier texts taught about drafting with this model; a plan chosen by rule starts from what the rule expects."""
    known, key = _paces.setdefault(model, {}), (num_loops, replace(plan, expected=None), alike(batch))
    if key not in known:
        pace = RoundPace(plan.length, plan.length / plan.gain(model, num_loops, 1.0, batch, pass_costs(model, batch)))
        if plan.expected is not None:
            pace.trusted, pace.recent = plan.expected > CLEAR, float(plan.length)
            pace.clocked = model.device.type == "cpu"
            others = [each.passes for (_, _, rows), each in list(known.items()) if rows == alike(batch)]
            pace.passes = others[0] if others else pace.passes  # what a plain pass takes does not depend on the plan
            pace.wait = 0 if pace.trusted else pace.pause
        known[key] = pace
    return known[key]
