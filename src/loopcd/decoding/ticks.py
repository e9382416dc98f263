"""Texts that go on together, each at its own loop.

Every loop of a looped model has the same weights, so a token at loop 3 and one at loop 9 can go through the same products;
only what they attend to differs. A **tick** advances every token in flight by one loop. Between ticks a **gate** may open: the
tokens that have left the loop are read out, their texts get the next token, which begins its loops beside those that still
run; a text that has ended gives its place to a waiting prompt. A prompt is read a loop a tick, so it holds nobody up for long.

A text may run ahead of itself (`wave`): then its last token in flight comes to the gate as soon as it has run a few loops, to
name the next one, and goes on.

A gate costs a pass through what stands beside the loops (prelude, coda, head), however many tokens come through it. It opens
when nothing is in flight, or when the texts before it have waited for as long as it costs: without early exits that keeps all
texts in step, and with them it weighs idle texts against small passes.

Each text has a cache, a scorer and a stopping rule of its own, as if it were alone, and so it gets the tokens that it gets
alone.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from loopcd.decoding.exits import LOOKED_AFTER, may_leave
from loopcd.decoding.flight import Flying, Prompt, Row, Unit, begun, joined_flights, read_together, score_together, show_trail
from loopcd.decoding.loop import choose
from loopcd.decoding.reader import Reading, not_finite
from loopcd.decoding.rounds import near_choices
from loopcd.decoding.scoring import ContrastScorer, PlainScorer, Scorer
from loopcd.decoding.wave import Wave
from loopcd.models.places import Places, Together
from loopcd.models.slots import Span, sent
from loopcd.models.stages import LoopedModel, LoopState, Pass, checked_loops, wide

FEW = 8  # this share of the places is waited for before prompts are taken on


class Ticks:
    """At most `rows` texts at a time, all by the same model and number of loops, each by its own method."""

    def __init__(self, model: LoopedModel, rows: int, num_loops: int | None = None) -> None:
        self.model, self.num_loops = model, checked_loops(num_loops, model.num_loops)
        self.places = Places(model, rows, self.num_loops)
        self.free = list(range(rows))  # a heap: the lowest first, so that texts lie side by side
        self.inside: set[Row] = set()  # texts that have places
        self.waiting: deque[Row] = deque()
        self.prompts: list[Prompt] = []
        self.flying: Flying | None = None  # in the order of (loop, place)
        self.arrived: list[Flying] = []  # before the gate
        self.read: list[Prompt] = []  # before the gate
        self.ticks = 0
        self._unseen: list[tuple[int, Flying, Tensor]] = []  # ticks at which tokens may have left, and which of them
        self._every = 1 if model.device.type == "cpu" else LOOKED_AFTER
        self._held = 0  # texts before the gate, summed over ticks
        self._ahead = False  # whether any text ever ran ahead of itself
        inside = len(model.loop_slots(1))
        self._patience = (model.slot_count(1) - inside + 1) / inside  # what a gate costs, in ticks

    def add(self, row: Row) -> None:
        self.waiting.append(row)

    def drop(self, row: Row) -> None:
        """Take a text out wherever it is, if it has not ended."""
        if row in self.waiting:
            self.waiting.remove(row)
        if row not in self.inside:
            return
        self.prompts, self.read = ([part for each in some if (part := each.without(row))] for some in (self.prompts, self.read))
        self.arrived = [part for each in self.arrived if (part := each.without(row)) is not None]
        self.flying = None if self.flying is None else self.flying.without(row)
        row.sound = False  # nobody looked at its numbers
        self._make_free(row)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.prompts or self.flying or self.arrived or self.read)

    @property
    def _units(self) -> list[Unit]:
        return [] if self.flying is None else self.flying.units

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
        before, flying = sum(len(each.units) for each in self.arrived), len(self._units)
        if self._ahead:  # texts may have several tokens in flight
            waiting = {unit.row for each in self.arrived for unit in each.units} | {unit.row for unit in self._tips()}
            before, flying = len(waiting), len({unit.row for unit in self._units} - waiting)
        before += sum(len(each.rows) for each in self.read) + self._admitted()
        flying += sum(len(each.rows) for each in self.prompts)
        self._held += before
        if flying and self._held < self._patience * (before + flying):
            return False
        self._held = 0
        return before > 0

    def _tips(self) -> list[Unit]:
        """The tokens that are to name the next ones of their texts."""
        return [unit for row, wave in self._waves().items() if (unit := wave.tip(row.room(wave))) is not None]

    def _waves(self) -> dict[Row, Wave]:
        """The texts in flight that run ahead of themselves."""
        return {unit.row: unit.row.wave for unit in self._units if unit.row.wave is not None} if self._ahead else {}

    def _gate(self) -> list[Row]:
        looked = [unit for wave in self._waves().values() for unit in wave.again()] + self._tips()
        given, named = self._choose(looked)
        ended = [row for row, over in given.items() if over]
        going = {row: row.tokens[-1] for row, over in given.items() if not over and not row.follows}
        self._let_fall([unit for row in (*ended, *going) if row.wave is not None for unit in row.wave.units])
        for row in ended:
            self._make_free(row)
        ended += self._admit()
        for unit, token in zip(looked, named, strict=True):  # of each text, the first tokens first
            assert unit.row.wave is not None
            behind = unit.row.wave.named(unit, token)
            if behind is not None:
                self._let_fall(behind)
                going[unit.row] = token
        self._begin(going)
        return ended

    def _make_free(self, row: Row) -> None:
        if not row.sound and row.job.cache is None:  # a cache of the caller's own lives there
            self.places.clear(row.place)
        self.inside.remove(row)
        heapq.heappush(self.free, row.place)

    def _let_fall(self, vain: Sequence[Unit]) -> None:
        """These tokens, the last ones of their texts, were begun in vain."""
        for unit in vain:
            assert unit.row.wave is not None
            unit.row.wave.units.remove(unit)
            unit.row.cache.crop(-1)
        if vain and self.flying is not None:
            fallen = set(vain)
            self.flying = self.flying.keep([at for at, unit in enumerate(self.flying.units) if unit not in fallen])

    def _admitted(self) -> int:
        """Waiting texts that may take places now: not one by one where there are many places, since a pass over one prompt
        costs nearly as much as over a few."""
        fitting = min(len(self.free), len(self.waiting))
        return fitting if fitting >= min(len(self.waiting), self.places.rows // FEW) else 0

    def _admit(self) -> list[Row]:
        """Waiting texts take the places that are free, and their prompts begin; those that cannot, with the reason."""
        rows = [self.waiting.popleft() for _ in range(self._admitted())]
        for row in rows:
            place = heapq.heappop(self.free)
            try:
                row.take_place(self.places, place)
            except Exception as error:  # one text's trouble is no other's
                row.error = error
                heapq.heappush(self.free, place)
            else:
                self.inside.add(row)
                self._ahead = self._ahead or row.wave is not None
        for some in read_together([row for row in rows if row.error is None]):
            self._take_on(some)
        return [row for row in rows if row.error is not None]

    def _take_on(self, rows: list[Row]) -> None:
        try:
            self.prompts.append(begun(rows, self.places))
        except Exception as error:
            if len(rows) > 1:  # whose trouble it is shows where each is alone
                for row in rows:
                    self._take_on([row])
                return
            rows[0].error, rows[0].sound = error, False  # nobody looked at its numbers
            self._make_free(rows[0])

    def _begin(self, tokens: Mapping[Row, int]) -> None:
        """A token of each of these texts begins its loops."""
        by_seed: dict[Any, list[Row]] = {}
        for row in sorted(tokens, key=lambda row: row.place):
            by_seed.setdefault(row.job.init_seed, []).append(row)
        for seed, some in by_seed.items():
            where = {"device": self.model.device, "num_loops": self.num_loops}
            units = [Unit(row, row.cache.open(1, 1, **where), tokens[row]) for row in some]
            for unit in units:
                if unit.row.wave is not None:
                    unit.row.wave.units.append(unit)
            together: Any = self._together(units)
            ids = sent([[unit.token] for unit in units], self.model.device)
            positions = sent([[unit.column] for unit in units], self.model.device)
            state = self.model.begin(ids, together, position_ids=positions, init_seed=seed)
            if together.ids is not None:
                for unit, token in zip(units, ids, strict=True):
                    unit.row.cache.remember(unit.span, token[None])
            begun = Flying(units, state, torch.ones(len(units), device=state.hidden.device))
            parts = [begun] if self.flying is None else [begun, self.flying]
            self.flying = joined_flights(parts, lambda unit: (unit.loop, unit.row.place))

    def _together(self, units: Sequence[Unit]) -> Together:
        at, columns = [unit.row.place for unit in units], [unit.column for unit in units]
        return Together(self.places, at, columns, [unit.loop for unit in units], self.model.device)

    def _bound(self, flying: Flying) -> Flying:
        """The same with what these units together have for a cache."""
        if flying.bound:
            return flying
        state, together = flying.state, self._together(flying.units)
        old, span = state.tokens, Span(len(flying.units), 0, 1)
        tokens = Pass(span, together, together.mask, old.rotary, old.injected, old.length)  # pyright: ignore[reportArgumentType]
        return Flying(flying.units, LoopState(state.hidden, 0, tokens, state.extra), flying.staying, True)

    # -- choosing tokens ----------------------------------------------------------------------------------------------

    def _choose(self, tips: Sequence[Unit]) -> tuple[dict[Row, bool], list[int]]:
        """Read out what stands before the gate, and give each text its next token; whether it ends by that. Then what `tips`,
        which go on, name as the next tokens of theirs."""
        hidden, came = [], []
        out = self._before_gate(tips)
        done = 0 if out is None else len(out.units) - len(tips)
        if out is not None:
            hidden.append(self.model.readout(out.state, last=True)[:, -1])
            came += [(unit.row, unit.loop, (unit, out.state.tokens.rotary, at)) for at, unit in enumerate(out.units[:done])]
        for prompt in self.read:
            hidden.append(prompt.last(self.model.readout(prompt.state, last=prompt.alone)))
            came += [(row, prompt.state.loop, None) for row in prompt.rows]
        self.arrived, self.read = [], []
        if not hidden:
            return {}, []
        read = torch.cat(hidden)  # [texts, tips behind the tokens that came out, prompts]
        reading, named = Reading(read, wide(self.model.head(read))), list[int]()
        if tips:
            behind = done + len(tips)
            named = self.guess(tips, reading.logits[done:behind])
            rest, said = (torch.cat([each[:done], each[behind:]]) for each in (reading.hidden, reading.logits))
            reading = Reading(rest, said)
        return self._given(reading, came), named

    def guess(self, tips: Sequence[Unit], logits: Tensor) -> list[int]:
        """What these tokens, with early readouts `logits` [tips, vocab], name as the next ones of their texts."""
        return logits.argmax(dim=-1).tolist()

    def _given(self, reading: Reading, came: Sequence[tuple[Row, int, Any]]) -> dict[Row, bool]:
        """Give each of these texts its next token, by a reading of what came out of it; whether it ends by that."""
        for (row, _, _), sound in zip(came, reading.logits.amax(dim=-1).isfinite().tolist(), strict=True):
            row.sound = row.sound and sound
        plain = self._plain(reading, [row for row, _, _ in came])
        scored = self._alike(reading, came, plain)
        given: dict[Row, bool] = {}
        for at, (row, loops, seen) in enumerate(came):
            if row in given and (given[row] or not row.follows):
                continue  # of several tokens of one text, those behind a refused one came in vain
            try:
                if not row.sound:
                    raise not_finite()
                token, *told = scored.get(at) or self._told(row, seen, reading, at, plain[at])
                given[row] = row.add(token, loops, *told)
            except Exception as error:  # one text's trouble is no other's
                row.error, given[row] = error, True
        return given

    def _alike(self, reading: Reading, came: Sequence[Any], plain: Sequence[int | None]) -> dict[int, tuple[int, bool, bool]]:
        """Texts that have to be scored, and can be together: the token of each, whether it was contested, and touched."""
        groups: dict[Any, list[int]] = {}
        for at, (row, _, seen) in enumerate(came):
            asked = row.sound and plain[at] is None and row.simple and seen and row.wave is None
            key = getattr(row.scorer, "alike", lambda: None)() if asked else None
            if key is not None:
                groups.setdefault(key, []).append(at)
        scored = {}
        for some in groups.values():
            if len(some) > 1:
                index = torch.tensor(some, device=reading.hidden.device)
                own = Reading(reading.hidden[index], reading.logits[index])
                scores = score_together([came[at][2] for at in some], own, self.places)
                told = zip(scores.best().tolist(), scores.contested.tolist(), scores.touched.tolist(), strict=True)
                scored.update(zip(some, told, strict=True))
        return scored

    def _before_gate(self, tips: Sequence[Unit]) -> Flying | None:
        """The tokens that have come out, by place, and behind them `tips`, which are still in flight."""
        parts = list(self.arrived)
        if tips and self.flying is not None:
            at = {unit: index for index, unit in enumerate(self._units)}
            parts.append(self.flying.keep([at[unit] for unit in tips]))  # pyright: ignore[reportArgumentType]
        if not parts:
            return None
        order = {unit: index for index, unit in enumerate(tips)}
        return self._bound(joined_flights(parts, lambda unit: (unit in order, order.get(unit, unit.row.place))))

    def _plain(self, reading: Reading, rows: Sequence[Row]) -> list[int | None]:
        """The token of each text for which the expert's own choice is enough; all of them are looked at together."""
        simple = [row.simple for row in rows]
        exact = reading.dtype.itemsize >= 4  # a scorer looks more closely at logits of 16 bits
        if not any(simple):
            return [None] * len(rows)
        best = reading.logits.argmax(dim=-1).tolist()
        top = reading.logits.topk(min(2, reading.logits.shape[1]), dim=-1).values.tolist()

        def settled(scorer: Scorer, logits: list[float]) -> bool:
            if isinstance(scorer, PlainScorer):
                return True
            return exact and isinstance(scorer, ContrastScorer) and len(logits) == 2 and scorer.settles(*logits)

        chosen = zip(rows, simple, best, top, strict=True)
        return [token if alike and settled(row.scorer, two) else None for row, alike, token, two in chosen]

    def _told(self, row: Row, seen: Any, reading: Reading, at: int, token: int | None) -> tuple[int, bool, bool]:
        """As `_alike`, of one text alone, or of one whose token is settled."""
        if token is not None:
            if row.wave is not None and row.wave.probe is not None and seen is not None:
                show_trail(*seen)
            if isinstance(row.scorer, ContrastScorer):
                row.scorer.forget()
            self._count_near(row, reading.logits, reading.logits, at, contested=False)
            return token, False, False
        if seen is not None:
            show_trail(*seen)
        own = Reading(reading.hidden[at : at + 1], reading.logits[at : at + 1])
        scores, picked, _ = choose(row.scorer, own, row.cache, row.stopper.text(0), row.job.sampling)
        contested = bool(scores.contested[0])
        self._count_near(row, own.logits, scores.values, 0, contested)
        return int(picked), contested, bool(scores.touched[0])

    def _count_near(self, row: Row, logits: Tensor, scores: Tensor, at: int, contested: bool) -> None:
        """Of the choices that judge a draft, those that a rounding error could decide."""
        if row.wave is not None and len(row.wave.units) > 1:
            logits, scores = logits[at : at + 1], scores[at : at + 1]
            near = near_choices(logits, scores, row.scorer, self.model.dtype, torch.tensor([contested]))
            row.wave.report.near_ties += int(near)

    # -- a tick -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.flying is None and not self.prompts:
            return
        self.ticks += 1
        reading, self.prompts = self.prompts, []
        for prompt in reading:
            self._advance_prompt(prompt)
        if self.flying is not None:
            self._advance_units(self.flying)

    def _advance_prompt(self, prompt: Prompt) -> None:
        before = prompt.state
        prompt.state = after = self.model.advance(before)
        for at, row in enumerate(prompt.rows):
            if row.watches:
                row.watch(prompt.own(at))
        if after.loop == self.num_loops:
            self.read.append(prompt)
            return
        reached = None if prompt.judge is None else prompt.judge.reached(before, after)
        leaving = [] if reached is None else reached.tolist()
        if any(leaving):
            self._part(prompt, leaving)
        else:
            self.prompts.append(prompt)

    def _part(self, prompt: Prompt, leaving: Sequence[bool]) -> None:
        """Some prompts of a pass leave the loop, the others go on."""
        gone = [at for at, leaves in enumerate(leaving) if leaves]
        for row in [prompt.rows[at] for at in gone]:
            assert row.cache.span is not None
            row.cache.leave(row.cache.span, prompt.state.loop, prompt.state.hidden.device)
        out = replace(prompt, judge=None).keep(gone)
        rest = prompt.keep([at for at, leaves in enumerate(leaving) if not leaves])
        self.read += [] if out is None else [out]
        self.prompts += [] if rest is None else [rest]

    def _advance_units(self, flying: Flying) -> None:
        flying = self._bound(flying)
        before, units = self._entered(flying), flying.units
        together: Together = before.tokens.cache  # pyright: ignore[reportAssignmentType]
        after = self.model.advance(before)
        together.ran()
        loops, asked, last = list[int](), list[Any](), list[Unit]()
        for at, unit in enumerate(units):
            row, loop = unit.row, unit.loop + 1
            unit.loop = loop
            if row.watches:
                unit.trail.append((after.hidden, at))
            loops.append(loop)
            asked.append(None if loop == self.num_loops else row.exit)
            if loop == self.num_loops:
                last.append(unit)
        reached, staying = may_leave(self.model, asked, loops, flying.staying, before, after)
        self.flying = flying = Flying(units, LoopState(after.hidden, 0, after.tokens, after.extra), staying, bound=True)
        if reached is not None:
            self._unseen.append((self.ticks, flying, reached))
        gone = self._look() if self._unseen and (last or self.ticks % self._every == 0) else set[Unit]()
        if left := [unit for unit in last if unit not in gone]:
            self.arrived.append(flying.only(left))
            gone.update(left)
        if gone:
            self.flying = flying.keep([at for at, unit in enumerate(units) if unit not in gone])

    def _look(self) -> set[Unit]:
        """The tokens whose exit rules let them go since the last look stand before the gate, with what they left with."""
        inside, gone = set(self._units), set[Unit]()
        said = iter(torch.cat([reached for *_, reached in self._unseen]).tolist())
        for tick, flight, _ in self._unseen:
            left = [unit for unit in flight.units if next(said) and unit in inside and unit not in gone]
            for unit in left:
                entered, unit.loop = unit.loop, unit.loop - (self.ticks - tick)
                del unit.trail[unit.loop :]
                unit.row.cache.leave(unit.span, unit.loop, flight.state.hidden.device, entered)
            if left:
                self.arrived.append(flight.only(left))
                gone.update(left)
        self._unseen = []
        return gone

    def _entered(self, flying: Flying) -> LoopState:
        """Make ready what the units see at the loop that comes: also of tokens that left before it."""
        state, hidden_from, numbers, columns = flying.state, dict[int, Any](), list[int](), list[int]()
        for at, unit in enumerate(flying.units):
            cache, loop = unit.row.cache, unit.loop + 1
            reach = cache.reach
            if reach is None and cache.depths is None:
                continue
            if reach is not None and loop > 1:
                for start, stop in reach.missed(unit.span.start, loop):
                    columns += range(start, stop)
                    numbers += [(loop - 1) * self.places.rows + unit.row.place] * (stop - start)
            elif (seen := cache.seen_at(loop)) is not None:
                hidden_from[at] = ~seen[0]
        if numbers:
            self.places.carry(numbers, columns, self.model.device)
        if not hidden_from:
            return state
        together: Together = state.tokens.cache  # pyright: ignore[reportAssignmentType]
        table = torch.zeros(len(flying.units), together.longest, dtype=torch.bool, device=state.hidden.device)
        for at, columns in hidden_from.items():
            table[at, : len(columns)] = columns
        together.hide(table)
        return replace(state, tokens=replace(state.tokens, mask=together.mask))
