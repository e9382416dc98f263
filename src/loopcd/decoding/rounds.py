"""Drafting with the model's own early loops: the same tokens, in less time.

A round drafts a few tokens, each by the first loops only. Then the remaining loops are run for all of them at once: the
drafts' states and their keys of the first loops are those of the verification, so nothing is computed twice. The method's own
rule judges each position; the tokens up to the first refused draft, and the rule's own choice there, are what the method would
have chosen one by one. The rest is cropped from the cache. Rows of a batch accept different numbers.

Under sampling the rule's choice is drawn as it would be without a draft, and a draft is accepted if it is that draw: the
distribution, and with a seed for each row the text, is that of the undrafted method.

A pass over several tokens rounds differently, in the last bits, from passes over one. That can only decide between tokens whose
scores are nearer than those bits; `DraftReport.near_ties` counts the choices that were nearer than `NEAR`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopcd.decoding.draft import DraftReport, SelfDraft, pace_of
from loopcd.decoding.engine import Engine, Reading
from loopcd.decoding.loop import Job, Step, pick, prefill
from loopcd.decoding.scoring import Scores
from loopcd.decoding.texts import Stopper
from loopcd.models.stages import LoopState

if TYPE_CHECKING:
    from loopcd.decoding.methods import Method

NEAR = 1e-4


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
    rounds = Rounds(method, job, engine, report)
    pace = pace_of(engine.model, engine.num_loops, plan)
    yield from rounds.plain(prefill(engine, job, rounds.watch)[0])
    while any(rounds.going):
        length = min(plan.length, rounds.stopper.remaining(rounds.going), engine.model.max_context - engine.cache.length)
        if length < 2 or (draft.fallback and not pace.drafting()):
            yield from rounds.plain(engine.read(rounds.unread(), watch=rounds.watch)[0])
            continue
        before, rows = report.emitted, sum(rounds.going)
        yield from rounds.drafted(length)
        if length == plan.length:
            pace.saw((report.emitted - before) / rows)


class Rounds:
    """A method at work on one job, several tokens at a time."""

    def __init__(self, method: "Method", job: Job, engine: Engine, report: DraftReport) -> None:
        self.job, self.engine, self.report = job, engine, report
        self.scorer = method.scorer(engine, job.tokenizer)
        self.stopper = Stopper(job.stopping, job.input_ids)
        self.going = [True] * job.input_ids.shape[0]
        self.pending = job.input_ids[:, -1].tolist()  # the last token of each row, chosen but not read

    def unread(self) -> Tensor:
        return torch.tensor(self.pending, device=self.job.input_ids.device)[:, None]  # [batch, 1]

    def watch(self, state: LoopState) -> None:
        """What a pass without a draft leaves for later drafts: the latents that their readouts will attend to."""
        self.scorer.watch(state)
        if state.loop == self.report.loops and not self.engine.model.pointwise_readout:
            self.engine.model.park(state)

    def plain(self, reading: Reading) -> Iterator[Step]:
        """One token for each row, by a pass that ran all loops."""
        self.report.plain += 1
        return self._settle(reading, drafts=[], length=1)

    def drafted(self, length: int) -> Iterator[Step]:
        """Up to `length` tokens for each row."""
        states, drafts = self._draft(length)
        self.report.rounds += 1
        self.report.proposed += sum(self.going) * (length - 1)
        before = _lengths(self.engine) - length
        counts = [0] * len(self.going)
        for step in self._settle(self._verify(states, length), [draft.tolist() for draft in drafts], length):
            counts = [count + taking for count, taking in zip(counts, step.going.tolist(), strict=True)]
            yield step
        self.report.emitted += sum(counts)
        # a row that had ended keeps a column as well, so that every row has one to go on from
        _crop(self.engine, before + torch.tensor([max(1, count) for count in counts], device=before.device))

    def _draft(self, length: int) -> tuple[list[LoopState], list[Tensor]]:
        """States of `length` tokens after the first loops, and the drafts [batch] that follow all but the last of them."""
        model, loops = self.engine.model, self.report.loops
        token, states, drafts = self.unread(), [], []
        for index in range(length):
            state = self.engine.begin(token)
            while state.loop < loops:
                state = model.advance(state)
                self.scorer.watch(state)
            states.append(state)
            parked = model.park(state)
            if index + 1 < length:
                drafts.append(model.head(model.read_parked(parked)[:, -1]).argmax(dim=-1))
                token = drafts[-1][:, None]
        return states, drafts

    def _verify(self, states: list[LoopState], length: int) -> Reading:
        model = self.engine.model
        state = model.join(states)
        while state.loop < self.engine.num_loops:
            state = model.advance(state)
            self.scorer.watch(state)
        hidden = model.readout(state).flatten(0, 1)  # [batch × length, width]
        return Reading(hidden, model.head(hidden).float(), count=length)

    def _settle(self, reading: Reading, drafts: list[list[int]], length: int) -> Iterator[Step]:
        """Choose token after token, in each row as long as its drafts are what was chosen."""
        scores = self.scorer.score(reading, self.engine.cache)
        best = scores.best().view(-1, length) if self.job.sampling.plain else None  # [batch, length]
        near = _near(scores, length) if length > 1 else None
        taking = list(self.going)
        for index in range(length):
            if not any(taking):
                return
            chosen, processed = self._choose(scores, best, index, taking)
            yield self._step(reading, scores, index, chosen, taking, processed)
            for row in [row for row, wanted in enumerate(taking) if wanted]:
                self.report.near_ties += near is not None and near[row][index]
                self.pending[row] = chosen[row]
                self.going[row] = not self.stopper.add(row, chosen[row])
                taking[row] = self.going[row] and index + 1 < length and chosen[row] == drafts[index][row]
                self.report.accepted += taking[row]

    def _choose(self, scores: Scores, best: Tensor | None, index: int, rows: Sequence[bool]) -> tuple[list[int], Tensor | None]:
        """The token of each row in `rows`; row by row where the text or a generator counts, since rows do not keep step."""
        if best is not None:
            return best[:, index].tolist(), None
        sampling, chosen, processed = self.job.sampling, list(self.pending), None
        for row in [row for row, wanted in enumerate(rows) if wanted]:
            own = replace(sampling, generators=None if sampling.generators is None else [sampling.generators[row]])
            at = torch.tensor([row * scores.count + index])
            picked, processed = pick(scores.take(at), self.stopper.text(row), own)
            chosen[row] = int(picked)
        return chosen, processed

    def _step(
        self, reading: Reading, scores: Scores, index: int, chosen: list[int], taking: list[bool], processed: Tensor | None
    ) -> Step:
        device, count = self.job.input_ids.device, scores.count
        return Step(
            torch.tensor(chosen, device=device),
            torch.tensor(taking, device=device),
            torch.full((len(chosen),), self.engine.num_loops),
            scores.contested[index::count],
            scores.touched[index::count],
            processed,
            reading.logits[index::count] if self.job.sampling.keep_logits else None,
        )


def _lengths(engine: Engine) -> Tensor:
    """Columns of each row [batch]."""
    cache = engine.cache
    return torch.full((cache.batch,), cache.length) if cache.lengths is None else cache.lengths


def _crop(engine: Engine, lengths: Tensor) -> None:
    if len(lengths) == 1:
        removed = engine.cache.length - int(lengths[0])
        if removed:
            engine.cache.crop(-removed)
    else:
        engine.cache.crop_rows(lengths)


def _near(scores: Scores, length: int) -> list[list[bool]]:
    """[batch][length], the choices that a rounding error could decide."""
    if scores.values.shape[1] < 2:
        return [[False] * length] * (scores.values.shape[0] // length)
    best = scores.values.topk(2, dim=-1).values
    return (best[:, 0] - best[:, 1] < NEAR).view(-1, length).tolist()
