"""Drafting with the model's own early loops: the same tokens, in less time.

A round drafts a few tokens, each by the first `loops` loops only. Then the remaining loops are run for all of them at once:
the drafts' states and their keys of the first loops are those of the verification, so nothing is computed twice. The method's
own rule judges each position; the tokens up to the first refused draft, and the rule's own choice there, are what the method
would have chosen one by one. The rest is cropped from the cache. Rows of a batch accept different numbers.

Under sampling the rule's choice is drawn as it would be without a draft, and a draft is accepted if it is that draw: the
distribution, and with a seed for each row the text, is that of the undrafted method.

A pass over several tokens rounds differently, in the last bits, from passes over one. That can only decide between tokens
whose scores are nearer than those bits; `DraftReport.near_ties` counts the choices that were nearer than `NEAR`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopcd.decoding.engine import Engine, Reading
from loopcd.decoding.loop import Job, Step, pick, prefill
from loopcd.decoding.scoring import Scorer, Scores
from loopcd.decoding.texts import Stopper
from loopcd.models.stages import LoopedModel, LoopState, loop_logits

if TYPE_CHECKING:
    from loopcd.decoding.methods import Method

NEAR = 1e-4
LONGEST = 8  # tokens of a round, where the length is chosen by rule
PROBED = 128  # prompt tokens that the rule looks at


@dataclass(frozen=True)
class SelfDraft:
    """Draft by the first `loops` loops, `length` tokens a round; None: chosen by a rule from how the model agrees with itself.

    With `fallback` (default) nothing is drafted while so few drafts are accepted that it would cost time.
    """

    loops: int | None = None
    length: int | None = 4
    fallback: bool = True

    def __post_init__(self) -> None:
        loops, length = self.loops, self.length
        if loops is not None and (isinstance(loops, bool) or not isinstance(loops, int) or loops < 1):
            raise ValueError(f"loops={loops!r}: a whole number of loops, at least 1, or None")
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 2):
            raise ValueError(f"length={length!r}: a whole number of tokens a round, at least 2, or None")

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

        A round makes (1 − p^k) / (1 − p) tokens. It costs k passes of `loops` loops, all but the last with a readout,
        and one pass of the remaining loops, which is a little dearer for several tokens than for one.
        """
        readout = _readout_cost(model)
        p, k = min(agreement, 0.999), self.length
        made = (1 - p**k) / (1 - p)
        together = 1 + 0.06 * (k - 1)
        cost = k * self.loops + (k - 1) * readout + (num_loops - self.loops + readout) * together
        return made * (num_loops + readout) / cost


def _readout_cost(model: LoopedModel) -> float:
    """The weights that a readout and the head read, as a share of those that a loop reads."""
    config = model.config
    width, wide = config.hidden_size, config.intermediate_size
    layer = width * (4 * width + 3 * wide)
    loop_layers = len(model.loop_slots(1))
    coda = getattr(config, "n_layers_in_coda", 0)
    return (coda * layer + config.vocab_size * width) / (loop_layers * layer)


_measured: "WeakKeyDictionary[LoopedModel, dict[int, list[float]]]" = WeakKeyDictionary()


def _agreement(model: LoopedModel, num_loops: int, prompt: Tensor) -> list[float]:
    """How often the model stopped at loop 1, 2, … names the token that it names at the end; measured once for a model."""
    known = _measured.setdefault(model, {})
    if num_loops not in known:
        said = loop_logits(model, prompt[None, -PROBED:], loops=range(1, num_loops + 1)).argmax(dim=-1)[0]  # [loop, time]
        known[num_loops] = (said == said[-1]).float().mean(dim=1).tolist()
    return known[num_loops]


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
class _Pace:
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


@dataclass
class _Drafted:
    """A method at work in rounds."""

    job: Job
    engine: Engine
    scorer: Scorer
    report: DraftReport
    stopper: Stopper
    going: Tensor = field(init=False)  # [batch]
    pending: Tensor = field(init=False)  # [batch], chosen but not read yet

    def watch(self, state: LoopState) -> None:
        self.scorer.watch(state)
        if state.loop == self.report.loops and not self.engine.model.pointwise_readout:
            self.engine.model.park(state)

    def settle(self, index: int, scores: Scores, rows: Tensor) -> tuple[Tensor, Step]:
        """Choose token `index` of a round in the given rows [batch] bool; the choice [batch], and the step to yield."""
        batch = len(rows)
        at = torch.arange(batch) * scores.count + index
        chosen, processed = self._choose(scores.take(at), rows)
        loops = torch.full((batch,), self.engine.num_loops)
        return chosen, Step(chosen, rows, loops, scores.contested[at], scores.touched[at], processed)

    def _choose(self, scores: Scores, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """As `loop.pick`, but row by row where the text or a generator counts: rows do not keep step."""
        sampling = self.job.sampling
        if sampling.plain:
            return scores.best(), None
        chosen, processed = self.pending.clone(), None
        for row in rows.nonzero().squeeze(1).tolist():
            generators = None if sampling.generators is None else [sampling.generators[row]]
            own = replace(sampling, generators=generators)
            picked, processed = pick(scores.take(torch.tensor([row])), self.stopper.text(row), own)
            chosen[row] = picked[0]
        return chosen, processed

    def round(self, length: int) -> Iterator[Step]:
        states, drafts = self._draft(length)
        reading = self._verify(states, length)
        scores = self.scorer.score(reading, self.engine.cache)
        base = _lengths(self.engine, length)
        matching, taken = self.going.clone(), torch.zeros_like(base)
        self.report.rounds += 1
        self.report.proposed += int(self.going.sum()) * (length - 1)
        for index in range(length):
            chosen, step = self.settle(index, scores, matching)
            if self.job.sampling.keep_logits:
                step = replace(step, logits=reading.logits.unflatten(0, (-1, length))[:, index])
            taken += matching.to(taken)
            self.report.emitted += int(matching.sum())
            self.pending = torch.where(matching, chosen, self.pending)
            ended = self.stopper.add(chosen, matching)
            self.going = self.going & ~ended
            yield step
            matching = matching & ~ended
            if index + 1 < length:
                matching = matching & (chosen == drafts[index])
                self.report.accepted += int(matching.sum())
            if not bool(matching.any()):
                break
        self.report.near_ties += _near(scores, taken, length)
        _crop(self.engine, base + taken.clamp(min=1))

    def _draft(self, length: int) -> tuple[list[LoopState], list[Tensor]]:
        """States of `length` tokens after the first loops, and the drafts that follow all but the last of them."""
        model, loops = self.engine.model, self.report.loops
        token, states, drafts = self.pending, [], []
        for index in range(length):
            state = self.engine.begin(token[:, None])
            while state.loop < loops:
                state = model.advance(state)
                self.scorer.watch(state)
            states.append(state)
            parked = model.park(state)
            if index + 1 < length:
                token = model.head(model.read_parked(parked)[:, -1]).argmax(dim=-1)
                drafts.append(token)
        return states, drafts

    def _verify(self, states: list[LoopState], length: int) -> Reading:
        model = self.engine.model
        state = model.join(states)
        while state.loop < self.engine.num_loops:
            state = model.advance(state)
            self.scorer.watch(state)
        hidden = model.readout(state).flatten(0, 1)  # [batch × length, width]
        return Reading(hidden, model.head(hidden).float(), count=length)

    def plain(self, reading: Reading) -> Step:
        scores = self.scorer.score(reading, self.engine.cache)
        chosen, step = self.settle(0, scores, self.going)
        self.pending = torch.where(self.going, chosen, self.pending)
        self.going = self.going & ~self.stopper.add(chosen, self.going)
        self.report.plain += 1
        return replace(step, logits=reading.logits) if self.job.sampling.keep_logits else step


@torch.no_grad()
def drafted_steps(method: "Method", draft: SelfDraft, job: Job, reports: list[DraftReport]) -> Iterator[Step]:
    """As `loop.steps`, in rounds. A step's `going` marks the rows that got a token by it: rows do not keep step."""
    engine = job.engine(method)
    if engine.cache.length:
        raise ValueError("drafting cannot go on from past_key_values: it needs the early states of the whole text")
    if job.sampling.keeps and job.input_ids.shape[0] > 1:
        raise ValueError("output_scores and output_logits with a draft: for one row at a time, since rows do not keep step")
    plan = draft.plan(engine.model, engine.num_loops, job.longest_prompt())
    report = DraftReport(plan.loops, plan.length)
    reports.append(report)
    work = _Drafted(job, engine, method.scorer(engine, job.tokenizer), report, Stopper(job.stopping, job.input_ids))
    batch = job.input_ids.shape[0]
    work.going = torch.ones(batch, dtype=torch.bool, device=job.input_ids.device)
    work.pending = job.input_ids[:, -1]
    yield work.plain(prefill(engine, job, work.watch)[0])
    pace = _pace(engine.model, engine.num_loops, plan)
    while bool(work.going.any()):
        length = min(plan.length, work.stopper.remaining(work.going), engine.model.max_context - engine.cache.length)
        if length < 2 or (draft.fallback and not pace.drafting()):
            reading, _ = engine.read(work.pending[:, None], watch=work.watch)
            yield work.plain(reading)
            continue
        before, row_rounds = report.emitted, int(work.going.sum())
        yield from work.round(length)
        if length == plan.length:
            pace.saw((report.emitted - before) / row_rounds)


_paces: "WeakKeyDictionary[LoopedModel, dict[tuple[int, Plan], _Pace]]" = WeakKeyDictionary()


def _pace(model: LoopedModel, num_loops: int, plan: Plan) -> _Pace:
    """What earlier texts taught about drafting with this model stays known."""
    break_even = plan.length / max(1.0, plan.gain(model, num_loops, 1.0))
    return _paces.setdefault(model, {}).setdefault((num_loops, plan), _Pace(break_even))


def _lengths(engine: Engine, length: int) -> Tensor:
    """Columns of each row before the round."""
    cache = engine.cache
    after = torch.full((cache.batch,), cache.length) if cache.lengths is None else cache.lengths
    return after - length


def _crop(engine: Engine, lengths: Tensor) -> None:
    if len(lengths) == 1:
        engine.cache.crop(int(lengths[0]) - engine.cache.length)
    else:
        engine.cache.crop_rows(lengths)


def _near(scores: Scores, taken: Tensor, length: int) -> int:
    """Choices among the taken ones that a rounding error could have decided."""
    best = scores.values.topk(min(2, scores.values.shape[1]), dim=-1).values
    if best.shape[1] < 2:
        return 0
    near = (best[:, 0] - best[:, 1] < NEAR).view(-1, length)
    return int((near & (torch.arange(length) < taken[:, None]).to(near.device)).sum())


def checked_draft(draft: Any, supported: bool, method: str, refused: Sequence[str] = ()) -> None:
    if draft is None:
        return
    if not isinstance(draft, SelfDraft):
        raise ValueError(f"draft={draft!r}: a SelfDraft, or None")
    if not supported:
        raise ValueError(f"draft={draft!r}: {method} cannot be drafted; Greedy and LoopCD can")
    if refused:
        raise ValueError(f"draft={draft!r} cannot be combined with {' and '.join(refused)}")
