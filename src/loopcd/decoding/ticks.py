"""Texts that go on together, each at its own loop.

Every loop of a looped model has the same weights, so a token at loop 3 and one at loop 9 can go through the same products;
only what they attend to differs. A **tick** advances every token in flight by one loop. Between ticks a **gate** may open: the
tokens that have left the loop are read out, their texts get the next token, which begins its loops beside those that still
run; a text that has ended gives its place to a waiting prompt. A prompt is read a loop a tick, so it holds nobody up for long.

A gate costs a pass through what stands beside the loops (prelude, coda, head), however many tokens come through it. It opens
when nothing is in flight, or when the texts before it have waited for as long as it costs: without early exits that keeps all
texts in step, and with them it weighs idle texts against small passes.

Each text has a cache, a scorer and a stopping rule of its own, as if it were alone, and so it gets the tokens that it gets
alone.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from loopcd.decoding.engine import Reading
from loopcd.decoding.exits import Judge
from loopcd.decoding.flight import Flying, Prompt, Row, Unit, joined_flights, score_together, show_trail
from loopcd.decoding.loop import choose
from loopcd.decoding.rules import relative_change
from loopcd.decoding.scoring import ContrastScorer, PlainScorer, Scorer
from loopcd.models.places import Places, Together
from loopcd.models.slots import Span
from loopcd.models.stages import LoopedModel, LoopState, checked_loops, wide


class Ticks:
    """At most `rows` texts at a time, all by the same model and number of loops, each by its own method."""

    def __init__(self, model: LoopedModel, rows: int, num_loops: int | None = None) -> None:
        self.model, self.num_loops = model, checked_loops(num_loops, model.num_loops)
        self.places = Places(model, rows, self.num_loops)
        self.free = list(range(rows))  # a heap: the lowest first, so that texts lie side by side
        self.waiting: deque[Row] = deque()
        self.prompts: list[Prompt] = []
        self.flying: Flying | None = None  # in the order of (loop, place)
        self.arrived: list[Flying] = []  # before the gate
        self.read: list[Prompt] = []  # before the gate
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
        self.arrived = [part for each in self.arrived if (part := each.without(row)) is not None]
        self.flying = None if self.flying is None else self._bound(self.flying.without(row))
        heapq.heappush(self.free, row.place)

    def __contains__(self, row: Row) -> bool:
        inside = [each.row for each in (*self.prompts, *self.read)]
        flights = [*self.arrived, *([] if self.flying is None else [self.flying])]
        return row in self.waiting or row in inside or any(unit.row is row for each in flights for unit in each.units)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.prompts or self.flying or self.arrived or self.read)

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
        before = sum(len(each.units) for each in self.arrived) + len(self.read) + min(len(self.free), len(self.waiting))
        flying = (0 if self.flying is None else len(self.flying.units)) + len(self.prompts)
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
        rule = row.engine.exit
        self.prompts.append(Prompt(row, state, None if rule is None else Judge(rule, self.model, None)))

    def _begin(self, rows: Sequence[Row]) -> None:
        """The last token of each of these texts begins its loops."""
        by_seed: dict[Any, list[Row]] = {}
        for row in sorted(rows, key=lambda row: row.place):
            by_seed.setdefault(row.job.init_seed, []).append(row)
        for seed, some in by_seed.items():
            units = [Unit(row, row.cache.open(1, 1, device=self.model.device)) for row in some]
            together = self._together(units)
            tokens = torch.tensor([[row.tokens[-1]] for row in some], device=self.model.device)
            positions = torch.tensor([[unit.column] for unit in units], device=self.model.device)
            told = {} if seed is None else {"init_seed": seed}
            state = self.model.begin(tokens, together, position_ids=positions, **told)  # pyright: ignore[reportArgumentType]
            if together.ids is not None:
                for unit, token in zip(units, tokens, strict=True):
                    unit.row.cache.remember(unit.span, token[None])
            begun = Flying(units, state, torch.ones(len(units), device=state.hidden.device))
            parts = [begun] if self.flying is None else [begun, self.flying]
            self.flying = self._bound(joined_flights(parts, lambda unit: (unit.loop, unit.row.place)))

    def _together(self, units: Sequence[Unit]) -> Together:
        at, columns = [unit.row.place for unit in units], [unit.column for unit in units]
        return Together(self.places, at, columns, [unit.loop for unit in units], self.model.device)

    def _bound(self, flying: Flying | None) -> Flying | None:
        """The same with what these units together have for a cache."""
        if flying is None:
            return None
        together = self._together(flying.units)
        span = Span(len(flying.units), 0, 1)
        tokens = replace(flying.state.tokens, span=span, cache=together, mask=together.mask)
        return replace(flying, state=replace(flying.state, loop=0, tokens=tokens))

    # -- choosing tokens ----------------------------------------------------------------------------------------------

    def _choose(self) -> list[tuple[Row, bool]]:
        """Read out what stands before the gate, and give each text its next token; whether it ends by that."""
        hidden, came = [], []
        if self.arrived:
            out = self._bound(joined_flights(self.arrived, lambda unit: unit.row.place))
            assert out is not None
            hidden.append(self.model.readout(out.state, last=True)[:, -1])
            came += [(unit.row, unit.loop, (unit, out.state.tokens.rotary, at)) for at, unit in enumerate(out.units)]
        for prompt in self.read:
            hidden.append(self.model.readout(prompt.state, last=True)[:, -1])
            came.append((prompt.row, prompt.state.loop, None))
        self.arrived, self.read = [], []
        if not came:
            return []
        read = torch.cat(hidden)  # [texts, width]
        reading = Reading(read, wide(self.model.head(read)))
        plain = self._plain(reading, [row for row, _, _ in came])
        scored = self._alike(reading, came, plain)
        given = []
        for at, (row, loops, seen) in enumerate(came):
            told = scored.get(at)
            over = self._give(row, loops, seen, reading, at, plain[at]) if told is None else row.add(told[0], loops, *told[1:])
            given.append((row, over))
        return given

    def _alike(self, reading: Reading, came: Sequence[Any], plain: Sequence[int | None]) -> dict[int, tuple[int, bool, bool]]:
        """Texts that have to be scored, and can be together: the token of each, whether it was contested, and touched."""
        groups: dict[Any, list[int]] = {}
        for at, (row, _, seen) in enumerate(came):
            key = getattr(row.scorer, "alike", lambda: None)() if plain[at] is None and row.simple and seen else None
            if key is not None:
                groups.setdefault(key, []).append(at)
        scored = {}
        for some in groups.values():
            if len(some) > 1:
                index = torch.tensor(some, device=reading.hidden.device)
                units = [(came[at][0], *came[at][2]) for at in some]
                scores = score_together(units, Reading(reading.hidden[index], reading.logits[index]), self.places)
                told = zip(scores.best().tolist(), scores.contested.tolist(), scores.touched.tolist(), strict=True)
                scored.update(zip(some, told, strict=True))
        return scored

    def _plain(self, reading: Reading, rows: Sequence[Row]) -> list[int | None]:
        """The token of each text for which the expert's own choice is enough; all of them are looked at together."""
        simple = [row.simple for row in rows]
        exact = reading.hidden.dtype.itemsize >= 4  # a scorer looks more closely at logits of 16 bits
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

    def _give(self, row: Row, loops: int, seen: Any, reading: Reading, at: int, token: int | None) -> bool:
        if token is not None:
            if isinstance(row.scorer, ContrastScorer):
                row.scorer.forget()
            return row.add(token, loops, False, False)
        own = Reading(reading.hidden[at : at + 1], reading.logits[at : at + 1])
        try:
            if seen is not None:
                show_trail(*seen)
            scores, picked, _ = choose(row.scorer, own, row.cache, row.stopper.text(0), row.job.sampling)
        except Exception as error:  # one text's trouble is no other's
            row.error = error
            return True
        return row.add(int(picked), loops, bool(scores.contested[0]), bool(scores.touched[0]))

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
        row, before = prompt.row, prompt.state
        prompt.state = after = self.model.advance(before)
        row.scorer.watch(after)
        if after.loop == self.num_loops:
            self.read.append(prompt)
        elif prompt.judge is not None and prompt.judge.leaving(before, after) is not None:
            row.cache.leave(after.tokens.span, after.loop, after.hidden.device)
            self.read.append(prompt)
        else:
            self.prompts.append(prompt)

    def _advance_units(self, flying: Flying) -> None:
        before, units = self._entered(flying), flying.units
        together: Together = before.tokens.cache  # pyright: ignore[reportAssignmentType]
        after = self.model.advance(before)
        together.ran()
        for at, unit in enumerate(units):
            unit.loop += 1
            if not isinstance(unit.row.scorer, PlainScorer):
                unit.trail.append((after.hidden, at))
        self.flying = flying = replace(flying, state=replace(after, loop=0))
        early = self._leaving(flying, before, after)
        gone = [at for at, unit in enumerate(units) if early[at] or unit.loop == self.num_loops]
        for unit in [units[at] for at in gone]:
            if unit.loop < self.num_loops:
                unit.row.cache.leave(unit.span, unit.loop, after.hidden.device)
        if (left := flying.keep(gone)) is not None:
            self.arrived.append(left)
            out = set(gone)
            self.flying = self._bound(flying.keep([at for at in range(len(units)) if at not in out]))

    def _entered(self, flying: Flying) -> LoopState:
        """Make ready what the units see at the loop that comes: also of tokens that left before it."""
        state, hidden_from = flying.state, {}
        for at, unit in enumerate(flying.units):
            cache, loop = unit.row.cache, unit.loop + 1
            if cache.reach is not None and loop > 1:
                cache.enter(unit.span, loop, self.model.loop_slots(loop), self.model.loop_slots(loop - 1))
            seen = cache.seen_at(loop)
            if seen is not None:
                hidden_from[at] = ~seen[0]
        if not hidden_from:
            return state
        together: Together = state.tokens.cache  # pyright: ignore[reportAssignmentType]
        table = torch.zeros(len(flying.units), max(together.columns) + 1, dtype=torch.bool, device=state.hidden.device)
        for at, columns in hidden_from.items():
            table[at, : len(columns)] = columns
        together.hide(table)
        return replace(state, tokens=replace(state.tokens, mask=together.mask))

    def _leaving(self, flying: Flying, before: LoopState, after: LoopState) -> list[bool]:
        """Which units' exit rules say that they leave."""
        rules = [unit.row.engine.exit for unit in flying.units]
        leaves = [False] * len(rules)
        for criterion in {rule.criterion for rule in rules if rule is not None}:
            limits = [0.0 if rule is None else rule.threshold for rule in rules]
            if criterion == "gate":
                stop = torch.sigmoid(wide(self.model.gate_logits(after)))[:, 0]  # pyright: ignore[reportCallIssue]
                flying.staying = flying.staying * (1 - stop)
                reached = 1 - flying.staying >= torch.tensor(limits, device=stop.device)
            else:
                change = relative_change(wide(before.hidden), wide(after.hidden))[:, 0]
                reached = change < torch.tensor(limits, dtype=change.dtype, device=change.device)
            said = reached.tolist()
            for at, rule in enumerate(rules):
                if rule is not None and rule.criterion == criterion and flying.units[at].loop >= (rule.min_loops or 0):
                    leaves[at] = said[at]
        return leaves
