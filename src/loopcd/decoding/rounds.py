"""Drafting with the model's own early loops: the same tokens, in less time.

A round drafts a few tokens, each by the first loops only. Then the remaining loops are run for all of them at once: the
drafts' states and their keys of the first loops are those of the verification, so nothing is computed twice. Where a readout
has keys of its own (Huginn's coda), a draft's readout sees the text by what the final readouts left there, and leaves its own
entries in the same columns, which the verification's readout writes over: drafting keeps nothing beside the plain cache.

The method's own rule judges each position; the tokens up to the first refused draft, and the rule's own choice there, are what
the method would have chosen one by one. The rest is cropped from the cache. Rows of a batch accept different numbers.

Under sampling the rule's choice is drawn as it would be without a draft, and a draft is accepted if it is that draw: the
distribution, and with a seed for each row the text, is that of the undrafted method.

A pass over several tokens rounds differently, in the last bits, from passes over one, as passes of different batch sizes do.
That can only decide between tokens whose scores are nearer than those bits, or whether a token just at the border is
plausible. Such a choice is taken as it comes, since neither rounding is the right one; `DraftReport.near_ties` counts the
choices that were nearer than `NEAR`, and `loopcd bench --what exact` compares whole texts.
"""

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopcd.decoding.bans import IN_STEP, KEEPS_TEXTS, Ruled, by_row, nothing_left, rule_out
from loopcd.decoding.draft import SURE, TRIAL, Agreement, DraftReport, Probe, RoundPace, SelfDraft, pace_of
from loopcd.decoding.loop import Job, Step, pick, prefill
from loopcd.decoding.narrowing import Narrowing, closed_up, without_ended
from loopcd.decoding.passes import alike
from loopcd.decoding.reader import Reader, Reading, check_finite
from loopcd.decoding.scoring import ContrastScorer, PlainScorer, Scorer, Scores
from loopcd.decoding.texts import Stopper
from loopcd.models.slots import sent
from loopcd.models.stages import LoopState, wide

if TYPE_CHECKING:
    from loopcd.decoding.methods import Method

# differences of scores that rounding may decide, by the model's dtype; in float32 passes were seen to differ by 1e-5
NEAR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}


def near_choices(logits: Tensor, scores: Tensor, scorer: Scorer, dtype: torch.dtype, contested: Tensor) -> Tensor:
    """[n] bool, the choices after the expert's logits [n, vocab], by scores [n, k], that a rounding error could decide; of a
    contrast's rows those that are not `contested` [n] have one token only, however often it is named."""
    within = NEAR.get(dtype, NEAR[torch.float32])
    near = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    if scores.shape[1] > 1:
        best = scores.topk(2, dim=-1).values
        near |= best[:, 0] - best[:, 1] < within
    if isinstance(scorer, ContrastScorer):
        near &= sent(contested, near.device)
        border = logits.amax(dim=-1, keepdim=True) + math.log(scorer.plausibility)
        near |= ((logits - border).abs() < within).any(dim=-1)
    return near


@torch.no_grad()
def drafted_steps(method: "Method", draft: SelfDraft, job: Job) -> Iterator[Step]:
    """As `loop.steps`, in rounds. A step's `going` marks the rows that got a token by it: rows do not keep step."""
    reader = job.reader(method)
    alone = job.input_ids.shape[0] == 1
    if job.sampling.keeps and not alone:
        raise ValueError("output_scores and output_logits with a draft: for one row at a time, since rows do not keep step")
    for processor in job.sampling.processors or ():
        if isinstance(processor, IN_STEP if alone else (*IN_STEP, *KEEPS_TEXTS)):
            raise ValueError(f"{type(processor).__name__} with a draft: its rows have to keep step; leave one of the two out")
    implementation = reader.model.config._attn_implementation or ""
    if "flash" in implementation and not alone:
        raise ValueError(
            f"attn_implementation={implementation!r} cannot serve rows of different lengths, which drafting in a batch makes: "
            "use 'sdpa', or one row at a time"
        )
    rounds = Rounds(method, draft, job, reader)
    try:
        yield from rounds.plain(prefill(method, reader, job, rounds.watch)[0])
        while any(rounds.going):
            rounds.narrow()
            length = min(rounds.next(), rounds.stopper.remaining(rounds.going), reader.model.max_context - reader.cache.length)
            began = time.thread_time()
            if length > 1:
                made = rounds.drafted(length)
            else:
                made = rounds.plain(reader.read(rounds.unread(), watch=rounds.watch)[0])
            with closing(made):  # whoever stops in a round finds no drafts in the cache
                for step in made:
                    yield rounds.widened(step)
            rounds.took(time.thread_time() - began, length)
    finally:
        rounds.level()


class Rounds:
    """A method at work on one job, several tokens at a time."""

    def __init__(self, method: "Method", draft: SelfDraft, job: Job, reader: Reader) -> None:
        self.draft, self.job, self.reader = draft, job, reader
        self.scorer = method.scorer(reader, job.tokenizer)
        self.stopper = Stopper(job.stopping, job.input_ids)
        self.going = [True] * job.input_ids.shape[0]
        self.pending = job.input_ids[:, -1].tolist()  # the last token of each row, chosen but not read
        self.held: dict[int, int] = {}  # columns of rows that have ended which hold their text, by row of the job
        self.narrowing = Narrowing(reader.cache, len(self.going), job.cache is not None)
        self.longest = 0  # tokens of the longest text that has left
        self.gave = 1.0  # tokens that the last pass or round gave a row that goes on
        self.report = DraftReport(0, 0)
        self.sure = False  # whether rounds end with the first draft that is not sure
        self.sures: list[bool] = []  # which drafts of the round were, of a single text by rule
        self.learned: Agreement | None = None  # what is known of drafts by rule
        self.pace: RoundPace | None = None  # None while there is no plan
        self.probe: Probe | None = None
        if reader.num_loops > 1 or draft.loops is not None:
            self._plan()
            if self.pace is None:
                self.probe = Probe(draft, reader.model, reader.num_loops, job.longest_row())

    def _plan(self) -> None:
        model, num_loops, batch = self.reader.model, self.reader.num_loops, len(self.going)
        plan = self.draft.plan(model, num_loops, batch)
        if plan is not None:
            self.report.loops, self.report.length, self.sure = plan.loops, plan.length, plan.sure
            self.pace = pace_of(model, num_loops, plan, batch)
            self.learned = self.draft.agreement(model, num_loops, plan.loops, batch)

    def next(self) -> int:
        """Tokens of the next round, 1 where nothing is to be drafted."""
        if self.pace is None:
            return 1
        return self.pace.next() if self.draft.fallback else self.report.length

    def took(self, seconds: float, length: int) -> None:
        """Let the pace know what a token took, where a thread's clock tells; rounds that only try teach nothing."""
        if self.pace is not None and self.pace.clocked and length in (1, self.pace.length):
            self.pace.took(seconds, self.gave, drafted=length > 1)

    def narrow(self) -> None:
        """Go on without the rows that have ended: at once where the others stay in their places, else where they are many."""
        staying = [row for row, going in enumerate(self.going) if going]
        if not self.narrowing.worth(len(staying)) or self.job.sampling.parts[0]:
            return
        ended = [row for row, going in enumerate(self.going) if not going]
        staying = staying if self.narrowing.kept else closed_up(staying)
        lengths = [self.held[int(row)] for row in self.narrowing.rows[ended]]
        before, self.longest = len(self.going), max(self.longest, *(len(self.stopper.texts[row]) for row in ended))
        self.narrowing.leave(torch.tensor(staying), torch.tensor(ended), torch.tensor(lengths))
        self.going, self.pending = [True] * len(staying), [self.pending[row] for row in staying]
        self.stopper.texts = [self.stopper.texts[row] for row in staying]
        self.job = replace(self.job, sampling=without_ended(self.reader, self.job.sampling, staying))
        if self.probe is not None:
            self.probe.row = staying.index(self.probe.row)
        elif self.pace is not None and alike(before) != alike(len(staying)):
            self._plan()

    def widened(self, step: Step) -> Step:
        """The step with an entry for each row of the job."""
        if self.narrowing.whole:
            return step
        told = (step.tokens, step.going, step.loops, step.contested, step.touched)
        return Step(*map(self.narrowing.widened, told), drafts=step.drafts)

    def unread(self) -> Tensor:
        """The tokens that were chosen, but not read yet."""
        return sent(self.pending, self.job.input_ids.device)[:, None]  # [batch, 1]

    def watch(self, state: LoopState) -> None:
        self.scorer.watch(state)
        if self.probe is not None:
            self.probe.watch(state)

    def plain(self, reading: Reading) -> Generator[Step]:
        """One token for each row, by a pass that ran all loops."""
        self.report.plain += 1
        self.gave = 1.0
        yield from self._settle(reading, drafts=[])
        if not all(self.going):
            self._crop(self._lengths())
        probe = self.probe
        if probe is None:
            return
        over = not self.going[probe.row]
        if probe.add(self.pending[probe.row], last=over):
            self._plan()
        if over or self.pace is not None:
            self.probe = None

    def drafted(self, most: int) -> Generator[Step]:
        """Up to `most` tokens for each row."""
        before, counts = self._lengths(), [0] * len(self.going)
        try:
            states, drafts = self._draft(most)
            report, rows, length = self.report, sum(self.going), len(states)
            report.rounds += 1
            report.row_rounds += rows
            report.proposed += rows * (length - 1)
            for step in self._settle(self._verify(states), torch.stack(drafts).tolist()):  # [length - 1, batch]
                counts = [count + taking for count, taking in zip(counts, step.going.tolist(), strict=True)]
                yield step
        finally:
            self._crop([held + count for held, count in zip(before, counts, strict=True)])
        report.emitted += sum(counts)
        # a round that a text's end made shorter teaches nothing
        whole = [count for count, going in zip(counts, self.going, strict=True) if going]
        self.gave = sum(whole) / len(whole) if whole else float(max(counts))
        if self.pace is not None and whole and most == (self.pace.length if self.pace.trusted else TRIAL):
            self.pace.saw(self.gave, length)

    def _draft(self, most: int) -> tuple[list[LoopState], list[Tensor]]:
        """States of up to `most` tokens after the first loops, and the drafts [batch] that follow all but the last of them."""
        model, loops = self.reader.model, self.report.loops
        token, states, drafts = self.unread(), [], []
        self.sures = []
        while True:
            state = self.reader.begin(token)
            while state.loop < loops:
                state = model.advance(state)
                self.scorer.watch(state)
            states.append(state)
            if len(states) == most or (self.sure and self.sures and not self.sures[-1]):
                return states, drafts
            drafts.append(self.guess(state))
            token = drafts[-1][:, None]

    def guess(self, state: LoopState) -> Tensor:
        """[batch], the next tokens as the model names them if it is stopped here; of a single text also whether it is sure."""
        model = self.reader.model
        logits = model.head(model.readout(state, last=True)[:, -1])
        if self.learned is None or len(self.going) > 1 or not logits.is_cpu:
            return logits.argmax(dim=-1)
        chance, token = wide(logits).softmax(dim=-1).max(dim=-1)
        self.sures.append(float(chance) >= SURE)
        return token

    def _verify(self, states: list[LoopState]) -> Reading:
        model = self.reader.model
        state = model.join(states)
        while state.loop < self.reader.num_loops:
            state = model.advance(state)
            self.scorer.watch(state)
        hidden = model.readout(state).flatten(0, 1)  # [batch × length, width]
        return Reading(hidden, wide(model.head(hidden)), count=len(states))

    def _lengths(self) -> list[int]:
        """Columns that each row holds."""
        cache = self.reader.cache
        return [cache.length] * len(self.going) if cache.lengths is None else cache.lengths.tolist()

    def _crop(self, kept: list[int]) -> None:
        """Keep so many columns of each row. One that has ended falls back to the shortest that goes on: what it holds there
        does not matter any more, and so it needs no columns beyond the longest text."""
        cache = self.reader.cache
        if len(kept) == 1:
            cache.crop(kept[0] - cache.length)
            return
        shortest = min((length for length, going in zip(kept, self.going, strict=True) if going), default=max(kept))
        kept = [length if going else min(length, shortest) for length, going in zip(kept, self.going, strict=True)]
        for row, number in enumerate(self.narrowing.rows.tolist()):
            if not self.going[row]:
                self.held[number] = min(kept[row], self.held.get(number, kept[row]))
        cache.crop_rows(torch.tensor(kept))

    def level(self) -> None:
        """At the end: every row holds as much as the shortest, so that whoever goes on from the cache finds no row ahead."""
        cache = self.reader.cache
        if self.narrowing.batch == 1:
            return
        if len(self.going) == 1 and not self.going[0]:  # it was cropped alone
            self.held[int(self.narrowing.rows[0])] = cache.length
        longest = max(self.longest, *(len(text) for text in self.stopper.texts))
        self.narrowing.come_back()
        if len(self.held) == self.narrowing.batch:
            shortest = min(self.held.values())
            cache.crop_rows(torch.full((self.narrowing.batch,), shortest))
            cache.behind = longest - 1 - shortest
            cache.behind_by = (self.reader.num_loops, self.reader.exit, self.job.init_seed)

    def _settle(self, reading: Reading, drafts: list[list[int]]) -> Iterator[Step]:
        """Choose token after token, in each row as long as its drafts are what was chosen."""
        if reading.logits.is_cpu:
            check_finite(reading.logits)
        ruled, length, said = self._ruled(reading, drafts), reading.count, reading.logits
        reading = reading if ruled is None else replace(reading, logits=ruled.logits)
        scores = self.scorer.score(reading, self.reader.cache)
        added = None if ruled is None else ruled.added
        plain = self.job.sampling.plain and added is None
        best, near = self._told(reading, scores, plain)
        taking = list(self.going)
        for index in range(length):
            if not any(taking):
                return
            for row in [row for row, wanted in enumerate(taking) if wanted and ruled is not None]:
                if not bool(ruled.possible[row * length + index]):  # pyright: ignore[reportOptionalMemberAccess]
                    raise nothing_left(row, self.stopper.text(row))
            chosen, processed = self._choose(scores, best, index, taking, added)
            yield self._step(said, scores, index, chosen, taking, processed)
            for row in [row for row, wanted in enumerate(taking) if wanted]:
                self.report.near_ties += near is not None and near[row][index]
                self.pending[row] = chosen[row]
                self.going[row] = not self.stopper.add(row, chosen[row])
                taking[row] = self.going[row] and index + 1 < length and chosen[row] == drafts[index][row]
                if self.learned is not None and index + 1 < length:
                    self.learned.add(chosen[row] == drafts[index][row], self.sures[index] if self.sures else True)
                self.report.accepted += taking[row]

    def _told(self, reading: Reading, scores: Scores, plain: bool) -> tuple[list[list[int]] | None, list[list[int]] | None]:
        """[batch][length] the best tokens, where they are what is chosen, and the choices that a rounding error could decide,
        where several tokens are judged; the device is waited for once."""
        asked = [scores.best()] if plain else []
        if reading.count > 1:
            near = near_choices(reading.logits, scores.values, self.scorer, self.reader.model.dtype, scores.contested)
            asked.append(near.long())
        if not asked:
            return None, None
        told = torch.stack(asked).view(len(asked), -1, reading.count).tolist()
        return told[0] if plain else None, told[-1] if reading.count > 1 else None

    def _ruled(self, reading: Reading, drafts: list[list[int]]) -> Ruled | None:
        """What the processors rule out, position by position: each sees the row's own text with the drafts before it, and where
        the row's number may matter to one, as many such texts as there are rows."""
        early = self.job.sampling.parts[0]
        if not early:
            return None
        plain, logits, device = isinstance(self.scorer, PlainScorer), reading.logits.clone(), reading.logits.device
        length, added = reading.count, None
        rows = len(self.going) if any(map(by_row, early)) else 1
        possible = torch.ones(len(logits), dtype=torch.bool)
        for row in [row for row, going in enumerate(self.going) if going]:
            text = list(self.stopper.texts[row])
            for index in range(length):
                at = row * length + index
                texts, said = torch.tensor([text] * rows, device=device), reading.logits[at : at + 1].expand(rows, -1)
                ruled, own = rule_out(early, texts, said, plain), row if rows > 1 else 0
                possible[at] = bool(ruled.possible[own])
                if possible[at]:  # where nothing is, it matters only if the text gets there
                    logits[at] = ruled.logits[own]
                if ruled.added is not None:
                    added = torch.zeros_like(logits) if added is None else added
                    added[at] = ruled.added[own]
                if index + 1 == length or not bool(torch.isfinite(ruled.logits[own, drafts[index][row]])):
                    break  # no text goes on by a draft that is ruled out
                text.append(drafts[index][row])
        return Ruled(logits, added, possible)

    def _choose(
        self, scores: Scores, best: list[list[int]] | None, index: int, rows: Sequence[bool], added: Tensor | None
    ) -> tuple[list[int], Tensor | None]:
        """The token of each row in `rows`; row by row where the text or a generator counts, since rows do not keep step."""
        if best is not None:
            return [row[index] for row in best], None
        sampling, chosen, processed = self.job.sampling, list(self.pending), None
        for row in [row for row, wanted in enumerate(rows) if wanted]:
            own = replace(sampling, generators=None if sampling.generators is None else [sampling.generators[row]])
            at = torch.tensor([row * scores.count + index])
            more = None if added is None else added[at]
            picked, processed = pick(scores.take(at), self.stopper.text(row), own, more)
            chosen[row] = int(picked)
        return chosen, processed

    def _step(
        self, said: Tensor, scores: Scores, index: int, chosen: list[int], taking: list[bool], processed: Tensor | None
    ) -> Step:
        count = scores.count
        return Step(
            torch.tensor(chosen),
            torch.tensor(taking),
            torch.full((len(chosen),), self.reader.num_loops),
            scores.contested[index::count],
            scores.touched[index::count],
            processed,
            said[index::count] if self.job.sampling.keep_logits else None,
            self.report,
        )
