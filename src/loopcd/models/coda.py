"""Readouts that attend: models whose head reads the latent through a coda, layers with key/value slots of their own.

A final readout leaves its entries in the coda's slots. An early one is asked what the model would say if it stopped there, and
the question is what it sees of the text before:

    "shared"  in a pass over several tokens (a prompt), its own entries of all of them; at every later token its own entry of
              that token, and of the text before what the final readouts left. Nothing is written, nothing kept.
    "own"     its own entries everywhere, as if the model stopped at that loop all along: it keeps slots and latents (`Branch`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopcd.models.cache import Branch, LoopCache
from loopcd.models.slots import Beside, Columns, Slot, Span, column_index
from loopcd.models.stages import Coda, LoopedModel, LoopState, Pass, joined, positions_of, rows_of

AT_ONCE = 64  # tokens of a text that are read together, each with a mask of its own


@dataclass(frozen=True, slots=True)
class Parked:
    """States of successive tokens kept for an early readout, and the branch that has their latents (None: the shared coda)."""

    states: list[LoopState]
    branch: Branch | None


class CodaModel(LoopedModel):
    """A family says what its coda is by the first three; readouts, final and early, follow."""

    pointwise_readout = False

    def through_coda(
        self, x: Tensor, rotary: Any, mask: Tensor | None, slots: Sequence[Any], span: Span, last: bool = False
    ) -> Tensor:
        """From latents to what the head reads, [rows, time, width]; with `last`, of the last token only."""
        raise TypeError(f"{type(self).__name__} does not say what its coda is")

    def make_rotary(self, position_ids: Tensor, length: int, input_ids: Tensor | None = None) -> Any:
        """The family's own form of these positions, all below `length`; of the tokens there, where it needs them again."""
        raise TypeError(f"{type(self).__name__} does not say how it writes positions")

    @property
    def coda_slots(self) -> range:
        raise TypeError(f"{type(self).__name__} does not say where its coda's keys are")

    def readout(self, state: LoopState, last: bool = False) -> Tensor:
        tokens = state.tokens
        slots = slots_of(tokens.cache, self.coda_slots)
        return self.through_coda(state.hidden, tokens.rotary, tokens.mask, slots, tokens.span, last)

    def park(self, state: LoopState, coda: Coda = "shared") -> Parked:
        cache = state.tokens.cache
        if cache is None:
            raise ValueError("an early readout is kept up along a text: it needs a cache")
        if coda == "shared":
            return Parked([state], None)
        branch = cache.branch(("coda", state.loop), len(self.coda_slots))
        branch.park(state.hidden, state.tokens.span)
        return Parked([state], branch)

    def join_parked(self, parked: Sequence[Parked]) -> Parked:
        return Parked([state for each in parked for state in each.states], parked[-1].branch)

    def read_parked(self, parked: Parked, count: int = 1, rows: Tensor | None = None) -> Tensor:
        if parked.branch is None:
            return self._read_shared(parked.states, count, rows)
        read = self._catch_up(parked.branch, parked.states[-1].tokens, count)
        return read if rows is None else read[rows]

    def read_latents(self, latents: Tensor, input_ids: Tensor | None = None) -> Tensor:
        tokens, position_ids = self.open_pass(latents, None, None, None)
        rotary = self.make_rotary(position_ids, tokens.length, input_ids)
        return self.through_coda(latents, rotary, tokens.mask, [None] * len(self.coda_slots), tokens.span)

    def read_later_tokens(self, latents: Iterable[Tensor], final: LoopState, columns: Tensor) -> Iterator[Tensor]:
        """What the head reads of the tokens at `columns` [rows, time] of whole texts, by the shared coda: of each of `latents`
        [rows, time, width], early ones of these tokens. `final` is the texts' state after the last loop, without a cache."""
        tokens = final.tokens
        slots = [Slot(Columns()) for _ in self.coda_slots]
        self.through_coda(final.hidden, tokens.rotary, tokens.mask, slots, tokens.span)
        stop, ids = tokens.span.stop, self.ids_in(tokens.rotary)
        blocks = [
            (at, self.make_rotary(at, stop, None if ids is None else ids.gather(1, at))) for at in columns.split(AT_ONCE, dim=1)
        ]
        for each in latents:
            parts = zip(each.split(AT_ONCE, dim=1), blocks, strict=True)
            yield joined([self._beside(x, rotary, slots, at, stop, None, None) for x, (at, rotary) in parts])

    # -- the shared coda ----------------------------------------------------------------------------------------------

    def _read_shared(self, states: Sequence[LoopState], count: int, rows: Tensor | None) -> Tensor:
        first, stop = states[0].tokens, states[-1].tokens.span.stop
        assert first.cache is not None
        valid = None if first.cache.valid is None else first.cache.valid[slice(None) if rows is None else rows, :stop]
        hidden = joined([state.hidden for state in states])
        hidden = hidden if rows is None else hidden[rows]
        rotary = rows_of(joined([state.tokens.rotary for state in states]), rows)
        slots = [first.cache.slot(index) for index in self.coda_slots]
        if first.span.columns is None and count == 1:
            return self._last_of(hidden, rotary, slots, valid, first.span.start, rows)
        if "flash" in (self.config._attn_implementation or ""):  # which takes no mask of one's own
            parts = []
            for at in range(count):
                turned = tuple(part[:, at : at + 1] for part in rotary)
                parts.append(self._last_of(hidden[:, at : at + 1], turned, slots, valid, first.span.start + at, rows))
            return joined(parts)
        columns = joined([column_index(state.tokens.span, hidden.device) for state in states])
        columns = rows_of(columns, rows).expand(len(hidden), -1)
        return self._beside(hidden, rotary, slots, columns, stop - 1, valid, rows)[:, -count:]

    def _last_of(
        self, hidden: Tensor, rotary: Any, slots: Sequence[Slot], valid: Tensor | None, start: int, rows: Tensor | None
    ) -> Tensor:
        """The last of successive tokens from column `start` on, [rows, 1, width]: they see each other by their own entries, and
        what is before `start` by the final readouts'."""
        span = Span(len(hidden), start, start + hidden.shape[1])
        mask = self.make_mask(span, None if valid is None else valid[:, : span.stop], hidden.device)
        return self.through_coda(hidden, rotary, mask, [Beside(slot, start, rows) for slot in slots], span, last=True)

    def _beside(
        self,
        hidden: Tensor,
        rotary: Any,
        slots: Sequence[Slot],
        columns: Tensor,
        stop: int,
        valid: Tensor | None,
        rows: Tensor | None,
    ) -> Tensor:
        """Tokens [rows, time, width] at `columns` [rows, time], none beyond `stop`: each sees itself by its own entry, and what
        is before it by the final readouts'."""
        time = hidden.shape[1]
        before = torch.arange(stop, device=columns.device) < columns[..., None]  # [rows, time, stop]
        if valid is not None:
            before = before & valid[:, None, :stop]
        own = torch.eye(time, dtype=torch.bool, device=columns.device).expand(len(columns), -1, -1)
        mask = torch.cat([before, own], dim=-1)[:, None]
        views = [Beside(slot, stop, rows) for slot in slots]
        return self.through_coda(hidden, rotary, mask, views, Span(len(columns), stop, stop + time))

    # -- a coda of the amateur's own ----------------------------------------------------------------------------------

    def _catch_up(self, branch: Branch, tokens: Pass, count: int) -> Tensor:
        """Send what is due through the coda of this branch, and give the last `count` tokens' readouts."""
        cache = tokens.cache
        assert cache is not None
        if not branch.whole:
            raise ValueError(
                "the cache holds tokens whose early latents were not kept: "
                "go on from a cache that was filled with the same amateur_loop, or start from an empty one"
            )
        x, span = branch.due(tokens.span, count)
        valid = None if cache.valid is None else cache.valid[:, : span.stop]
        mask = self.make_mask(span, valid, x.device)
        rotary = self.make_rotary(positions_of(span, valid, x.device), span.stop, cache.remembered(span))
        return self.through_coda(x, rotary, mask, branch.slots, span, last=count == 1)[:, -count:]


def slots_of(cache: LoopCache | None, indices: Sequence[int]) -> Sequence[Slot | None]:
    return [None if cache is None else cache.slot(index) for index in indices]
