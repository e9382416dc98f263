"""Texts that go on together, each at its own loop.

Every loop of a looped model has the same weights, so a token at loop 3 and one at loop 9 can go through the same products; only
what they attend to differs. A **tick** advances every token in flight by one loop. Between ticks a **gate** may open: the tokens
that have left the loop are read out, their texts get the next token, which begins its loops beside those that still run; a text
that has ended gives its place to a waiting prompt. A prompt is read a loop a tick, so it holds up nobody for longer than a loop.

A gate costs a pass through what stands beside the loops (prelude, coda, head), however many tokens come through it. It opens when
nothing is in flight, or when the tokens before it have waited for as long as it costs: without early exits that keeps all texts
in step, and with them it balances idle texts against small passes.

Each text has a cache, a scorer and a stopping rule of its own, as if it were alone, and so it gets the tokens that it gets alone.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopcd.decoding.engine import Engine, Reading
from loopcd.decoding.exits import Judge
from loopcd.decoding.loop import Job, Rows, pick
from loopcd.decoding.rules import relative_change
from loopcd.decoding.scoring import ContrastScorer, PlainScorer, Scorer
from loopcd.decoding.texts import Stopper
from loopcd.models.places import PlaceCache, Places, Together
from loopcd.models.slots import Span
from loopcd.models.stages import LoopedModel, LoopState, Pass, checked_loops, rows_of

if TYPE_CHECKING:
    from loopcd.decoding.methods import Method


class Row:
    """A text: a job of one prompt, the method that continues it, and what was made so far."""

    def __init__(self, method: "Method", job: Job) -> None:
        self.method, self.job = method, job
        self.tokens: list[int] = []
        self.loops: list[int] = []
        self.contested: list[bool] = []
        self.touched: list[bool] = []
        self.error: Exception | None = None

    def take_place(self, places: Places, place: int) -> None:
        exited = "last" if self.method.exit is None else self.method.exit.exited
        self.place, self.cache = place, PlaceCache(places, place, exited, self.job.limit)
        self.engine: Engine = replace(self.job, cache=self.cache).engine(self.method)
        self.scorer: Scorer = self.method.scorer(self.engine, self.job.tokenizer)
        self.stopper = Stopper(self.job.stopping, self.job.input_ids)
        # a coda of the amateur's own has to see every token; other amateurs are asked about few
        own_coda = getattr(self.method, "coda", None) == "own" and not self.job.model.pointwise_readout
        self.watches_all = own_coda

    def add(self, token: int, loops: int, contested: bool, touched: bool) -> bool:
        """Take the next token; whether the text ends by it."""
        self.tokens.append(token)
        self.loops.append(loops)
        self.contested.append(contested)
        self.touched.append(touched)
        return self.stopper.add(0, token)

    def rows(self) -> Rows:
        """What was made, in the form of a batch of one row."""
        lists = (self.tokens, [True] * len(self.tokens), self.loops, self.contested, self.touched)
        return Rows(*(torch.tensor([each]) for each in lists))


@dataclass(eq=False)
class Unit:
    """A token in flight: the last one of its text."""

    row: Row
    span: Span  # its column in the text's own cache
    loop: int = 0  # loops that it has run
    trail: list[tuple[Tensor, int]] = field(default_factory=list)  # the states after each loop, and which of them is its own

    @property
    def column(self) -> int:
        return self.span.start


@dataclass(eq=False)
class Prompt:
    """A prompt on its way through the loops."""

    row: Row
    state: LoopState
    judge: Judge | None


class Ticks:
    """At most `rows` texts at a time, all by the same model and number of loops, each by its own method."""

    def __init__(self, model: LoopedModel, rows: int, num_loops: int | None = None) -> None:
        self.model, self.num_loops = model, checked_loops(num_loops, model.num_loops)
        self.places = Places(model, rows, self.num_loops)
        self.free = list(range(rows))  # a heap: the lowest first, so that texts lie side by side
        self.waiting: deque[Row] = deque()
        self.prompts: list[Prompt] = []
        self.units: list[Unit] = []  # in flight, in the order of (loop, place)
        self.state: LoopState | None = None  # of the units, [units, 1, width]; says loop 0, each unit knows its own
        self.staying: Tensor | None = None  # [units], the gate's probability of still being in the loop
        self.arrived: list[tuple[list[Unit], LoopState]] = []
        self.read: list[Prompt] = []
        self.ticks = 0
        self._held = 0  # texts before the gate, summed over ticks
        inside = len(model.loop_slots(1))
        self._patience = (model.slot_count(1) - inside + 1) / inside  # what a gate costs, in ticks

    def add(self, row: Row) -> None:
        self.waiting.append(row)

    def drop(self, row: Row) -> None:
        """Take a text out wherever it is."""
        if row in self.waiting:
            self.waiting.remove(row)
            return
        self.prompts = [each for each in self.prompts if each.row is not row]
        self.read = [each for each in self.read if each.row is not row]
        self.arrived = [part for each in self.arrived if (part := _without(each, row)) is not None]
        if any(unit.row is row for unit in self.units):
            self._keep([at for at, unit in enumerate(self.units) if unit.row is not row])
        heapq.heappush(self.free, row.place)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.prompts or self.units or self.arrived or self.read)

    @torch.no_grad()
    def step(self) -> list[Row]:
        """One tick, after the gate if it opens; the texts that ended."""
        ended = self._gate() if self._opens() else []
        self._tick()
        return ended

    def run(self) -> Iterator[Row]:
        """Until nothing is left; each text as it ends."""
        while self.busy:
            yield from self.step()

    # -- the gate -----------------------------------------------------------------------------------------------------

    def _opens(self) -> bool:
        before = sum(len(units) for units, _ in self.arrived) + len(self.read) + min(len(self.free), len(self.waiting))
        flying = len(self.units) + len(self.prompts)
        self._held += before
        if flying and self._held < self._patience * (before + flying):
            return False
        self._held = 0
        return before > 0

    def _gate(self) -> list[Row]:
        going: list[Row] = []
        ended: list[Row] = []
        for row, over in self._choose():
            (ended if over else going).append(row)
        for row in ended:
            heapq.heappush(self.free, row.place)
        while self.free and self.waiting:
            self._admit(self.waiting.popleft(), heapq.heappop(self.free))
        self._begin(going)
        return ended

    def _admit(self, row: Row, place: int) -> None:
        row.take_place(self.places, place)
        state = row.engine.begin(row.job.input_ids)
        rule = row.method.exit
        self.prompts.append(Prompt(row, state, None if rule is None else Judge(rule, self.model, None)))

    def _begin(self, rows: Sequence[Row]) -> None:
        """The last token of each of these texts begins its loops."""
        by_seed: dict[Any, list[Row]] = {}
        for row in sorted(rows, key=lambda row: row.place):
            by_seed.setdefault(row.job.init_seed, []).append(row)
        for seed, some in by_seed.items():
            units = [Unit(row, row.cache.open(1, 1)) for row in some]
            together = self._together(units)
            tokens = torch.tensor([[row.tokens[-1]] for row in some], device=self.model.device)
            positions = torch.tensor([[unit.column] for unit in units], device=self.model.device)
            told = {} if seed is None else {"init_seed": seed}
            state = self.model.begin(tokens, together, position_ids=positions, **told)  # pyright: ignore[reportArgumentType]
            self._join(units, state)

    def _join(self, units: list[Unit], state: LoopState) -> None:
        fresh = torch.ones(len(units), device=state.hidden.device)
        self.staying = fresh if self.staying is None else torch.cat([fresh, self.staying])
        old = [] if self.state is None else [self.state]
        state, self.units = stacked([state, *old]), units + self.units
        order = sorted(range(len(self.units)), key=lambda at: (self.units[at].loop, self.units[at].row.place))
        self.state = state
        if order == list(range(len(order))):
            self.state = self._bound(state, self.units)
        else:
            self._keep(order)

    def _keep(self, order: Sequence[int]) -> None:
        """Only these units stay in flight, in this order."""
        assert self.state is not None and self.staying is not None
        self.units = [self.units[at] for at in order]
        if not self.units:
            self.state = self.staying = None
            return
        index = torch.tensor(order, device=self.state.hidden.device)
        self.state, self.staying = self._bound(self.state.keep(index), self.units), self.staying[index]

    def _together(self, units: Sequence[Unit]) -> Together:
        at, columns = [unit.row.place for unit in units], [unit.column for unit in units]
        return Together(self.places, at, columns, [unit.loop for unit in units], self.model.device)

    def _bound(self, state: LoopState, units: Sequence[Unit]) -> LoopState:
        """The state of these units, with what they have for a cache."""
        together = self._together(units)
        tokens = replace(state.tokens, span=Span(len(units), 0, 1), cache=together, mask=together.mask)
        return replace(state, loop=0, tokens=tokens)

    # -- choosing tokens ----------------------------------------------------------------------------------------------

    def _choose(self) -> list[tuple[Row, bool]]:
        """Read out what stands before the gate, and give each text its next token; whether it ends by that."""
        hidden, came = [], []
        if self.arrived:
            units = [unit for some, _ in self.arrived for unit in some]
            state = stacked([state for _, state in self.arrived])
            order = sorted(range(len(units)), key=lambda at: units[at].row.place)
            units = [units[at] for at in order]
            state = self._bound(state.keep(torch.tensor(order, device=state.hidden.device)), units)
            hidden.append(self.model.readout(state, last=True)[:, -1])
            came += [(unit.row, unit.loop, (unit, state.tokens.rotary, at)) for at, unit in enumerate(units)]
        for prompt in self.read:
            hidden.append(self.model.readout(prompt.state, last=True)[:, -1])
            came.append((prompt.row, prompt.state.loop, None))
        self.arrived, self.read = [], []
        if not came:
            return []
        read = torch.cat(hidden)  # [texts, width]
        reading = Reading(read, self.model.head(read).float())
        plain = self._plain(reading, [row for row, _, _ in came])
        return [(row, self._give(row, loops, seen, reading, at, plain[at])) for at, (row, loops, seen) in enumerate(came)]

    def _plain(self, reading: Reading, rows: Sequence[Row]) -> list[int | None]:
        """The token of each text for which the expert's own choice is enough; all of them are looked at together."""
        simple = [row.job.sampling.plain and not row.watches_all for row in rows]
        wide = reading.hidden.dtype.itemsize >= 4
        if not any(simple):
            return [None] * len(rows)
        best = reading.logits.argmax(dim=-1).tolist()
        top = reading.logits.topk(min(2, reading.logits.shape[1]), dim=-1).values.tolist()

        def settled(scorer: Scorer, logits: list[float]) -> bool:
            if isinstance(scorer, PlainScorer):
                return True
            return wide and isinstance(scorer, ContrastScorer) and len(logits) == 2 and scorer.settles(*logits)

        chosen = zip(rows, simple, best, top, strict=True)
        return [token if alike and settled(row.scorer, two) else None for row, alike, token, two in chosen]

    def _give(self, row: Row, loops: int, seen: Any, reading: Reading, at: int, token: int | None) -> bool:
        if token is not None:
            if isinstance(row.scorer, ContrastScorer):
                row.scorer.forget()
            return row.add(token, loops, False, False)
        own = Reading(reading.hidden[at : at + 1], reading.logits[at : at + 1])
        try:
            if seen is not None and seen[0].trail:
                _watch(row, *seen)
            scores = row.scorer.score(own, row.cache)
            picked, _ = pick(scores, row.stopper.text(0), row.job.sampling)
        except Exception as error:  # one text's trouble is no other's
            row.error = error
            return True
        return row.add(int(picked), loops, bool(scores.contested[0]), bool(scores.touched[0]))

    # -- a tick -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.units and not self.prompts:
            return
        self.ticks += 1
        reading, self.prompts = self.prompts, []
        for prompt in reading:
            self._advance_prompt(prompt)
        if self.units:
            self._advance_units()

    def _advance_prompt(self, prompt: Prompt) -> None:
        row, before = prompt.row, prompt.state
        prompt.state = after = self.model.advance(before)
        row.scorer.watch(after)
        if after.loop == self.num_loops:
            self.read.append(prompt)
        elif prompt.judge is not None and prompt.judge.leaving(before, after) is not None:
            row.cache.leave(after.tokens.span, after.loop)
            self.read.append(prompt)
        else:
            self.prompts.append(prompt)

    def _advance_units(self) -> None:
        before = self._entered()
        together: Together = before.tokens.cache  # pyright: ignore[reportAssignmentType]
        after = self.model.advance(before)
        together.ran()
        self.state = replace(after, loop=0)
        for at, unit in enumerate(self.units):
            unit.loop += 1
            if not isinstance(unit.row.scorer, PlainScorer):
                unit.trail.append((after.hidden, at))
        early = self._leaving(before, after)
        gone = [at for at, unit in enumerate(self.units) if early[at] or unit.loop == self.num_loops]
        if not gone:
            return
        for at in gone:
            unit = self.units[at]
            if unit.loop < self.num_loops:
                unit.row.cache.leave(unit.span, unit.loop)
        left = set(gone)
        units, state = [self.units[at] for at in gone], self.state
        if len(left) < len(self.units):
            state = state.keep(torch.tensor(gone, device=state.hidden.device))
        self.arrived.append((units, state))
        self._keep([at for at in range(len(self.units)) if at not in left])

    def _entered(self) -> LoopState:
        """Make ready what the units see at the loop that comes: also of tokens that left before it."""
        assert self.state is not None
        unseen: list[Tensor | None] = []
        for unit in self.units:
            cache, loop = unit.row.cache, unit.loop + 1
            if cache.reach is not None and loop > 1:
                cache.enter(unit.span, loop, self.model.loop_slots(loop), self.model.loop_slots(loop - 1))
            seen = cache.seen_at(loop)
            unseen.append(None if seen is None else ~seen[0])
        if all(each is None for each in unseen):
            return self.state
        together: Together = self.state.tokens.cache  # pyright: ignore[reportAssignmentType]
        table = torch.zeros(len(unseen), max(together.columns) + 1, dtype=torch.bool, device=self.state.hidden.device)
        for at, each in enumerate(unseen):
            if each is not None:
                table[at, : len(each)] = each
        together.hide(table)
        return replace(self.state, tokens=replace(self.state.tokens, mask=together.mask))

    def _leaving(self, before: LoopState, after: LoopState) -> list[bool]:
        """Which units' exit rules say that they leave."""
        rules = [unit.row.method.exit for unit in self.units]
        leaves = [False] * len(rules)
        criteria = {rule.criterion for rule in rules if rule is not None}
        for criterion in criteria:
            if criterion == "gate":
                assert self.staying is not None
                stop = torch.sigmoid(self.model.gate_logits(after))[:, 0]  # pyright: ignore[reportCallIssue]
                self.staying = self.staying.to(stop.dtype) * (1 - stop)
                value = self.staying - 1
            else:
                value = relative_change(before.hidden, after.hidden)[:, 0]
            limits = [0.0 if rule is None else rule.threshold for rule in rules]
            limit = torch.tensor(limits, dtype=value.dtype, device=value.device)
            reached = (1 - self.staying >= limit if criterion == "gate" else value < limit).tolist()  # pyright: ignore
            for at, rule in enumerate(rules):
                if rule is not None and rule.criterion == criterion and self.units[at].loop >= rule.min_loops:
                    leaves[at] = reached[at]
        return leaves


def _watch(row: Row, unit: Unit, rotary: Any, at: int) -> None:
    """Let the text's scorer see the states that its token went through."""
    tokens = Pass(unit.span, row.cache, None, rows_of(rotary, torch.tensor([at], device=unit.trail[0][0].device)))
    for loop, (hidden, place) in enumerate(unit.trail, start=1):
        row.scorer.watch(LoopState(hidden[place : place + 1], loop, tokens))


def _without(part: tuple[list[Unit], LoopState], row: Row) -> tuple[list[Unit], LoopState] | None:
    units, state = part
    kept = [at for at, unit in enumerate(units) if unit.row is not row]
    if len(kept) == len(units):
        return part
    return ([units[at] for at in kept], state.keep(torch.tensor(kept, device=state.hidden.device))) if kept else None


def stacked(states: Sequence[LoopState]) -> LoopState:
    """States [rows, 1, width] of different texts as one."""
    if len(states) == 1:
        return states[0]
    first = states[0].tokens
    tokens = replace(
        first,
        span=Span(sum(len(state.hidden) for state in states), 0, 1),
        rotary=_stacked([state.tokens.rotary for state in states]),
        injected=_stacked([state.tokens.injected for state in states]),
        mask=None,
    )
    hidden, extra = (_stacked([getattr(state, name) for state in states]) for name in ("hidden", "extra"))
    return LoopState(hidden, states[0].loop, tokens, extra)


def _stacked(parts: Sequence[Any]) -> Any:
    if parts[0] is None:
        return None
    if isinstance(parts[0], tuple):
        return tuple(_stacked(each) for each in zip(*parts, strict=True))
    return torch.cat(list(parts))
