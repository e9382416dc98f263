"""Rows whose texts have ended leave a batch under way, so that nothing more is computed for them.

A cache that somebody may go on from gets them back at the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopcd.decoding.reader import Reader
from loopcd.models.cache import LoopCache
from loopcd.models.slots import sent

if TYPE_CHECKING:
    from loopcd.decoding.loop import Sampling

WORTH = 0.75  # rows that come back at the end leave together, once no more than this share stays: all are copied
CHEAP = 0.95  # the same of others, where only the rows that take their places are copied


@dataclass(frozen=True)
class Aside:
    """What a cache held of rows that left it."""

    rows: Tensor  # [n]
    lengths: Tensor  # [n], columns that hold their text
    slots: list[tuple[Tensor, Tensor] | None]  # of each slot the keys and values [n, heads, columns, head_dim]
    valid: Tensor | None  # [n, columns]


class Narrowing:
    """A cache and the rows of a job that are still in it."""

    def __init__(self, cache: LoopCache, batch: int, kept: bool) -> None:
        self.cache, self.batch = cache, batch
        self.kept = kept  # whether somebody may go on from the cache
        self.rows = torch.arange(batch)  # of the job, in the order of the cache's
        self._aside: list[Aside] = []

    @property
    def whole(self) -> bool:
        return len(self.rows) == self.batch

    def worth(self, staying: int) -> bool:
        """Whether so few stay that the others should leave; not where more hangs on these than their keys and values, and they
        are to come back."""
        cache, share = self.cache, WORTH if self.kept else CHEAP
        bare = not cache.branches and cache.reach is None and cache.depths is None and cache.input_ids is None
        return staying <= share * len(self.rows) and (bare or not self.kept)

    def own(self, values: Tensor) -> Tensor:
        """Of what there is for each row of the job, that of those which are still here."""
        return values if self.whole else values[sent(self.rows, values.device)]

    def widened(self, values: Tensor) -> Tensor:
        """What there is for the rows that are still here, with an entry for each row of the job."""
        if self.whole:
            return values
        return values.new_zeros(self.batch).index_copy_(0, sent(self.rows, values.device), values)

    def leave(self, staying: Tensor, ended: Tensor | None = None, lengths: Tensor | None = None) -> None:
        """Keep the cache's rows `staying`; those that `ended` hold their texts in so many columns, where they come back."""
        if self.kept and ended is not None and lengths is not None:
            most = int(lengths.max())
            slots = [_part(slot, ended, most) for slot in self.cache.layers]
            valid = None if self.cache.valid is None else self.cache.valid[ended, :most]
            self._aside.append(Aside(self.rows[ended], lengths, slots, valid))
        self.cache.batch_select_indices(staying)
        self.rows = self.rows[staying]
        self.cache.crop_rows(self._lengths())

    def come_back(self) -> None:
        """All rows in the job's order, each with what it held."""
        if not self._aside:
            return
        cache = self.cache
        order = torch.cat([self.rows, *(each.rows for each in self._aside)]).argsort()
        lengths = torch.cat([self._lengths(), *(each.lengths for each in self._aside)])[order]
        for number, slot in enumerate(cache.layers):
            if (part := _part(slot, None, cache.length)) is not None:
                parts = filter(None, [part, *(each.slots[number] for each in self._aside)])
                keys, values = (_together(kind, order, cache.length, 2) for kind in zip(*parts, strict=True))
                slot.fill(keys, values)  # pyright: ignore[reportAttributeAccessIssue]
        if cache.valid is not None:
            tables = [cache.valid, *(each.valid for each in self._aside if each.valid is not None)]
            cache.valid = _together(tables, order, cache.length, 1)
        cache.batch, self.rows, self._aside = self.batch, torch.arange(self.batch), []
        cache.crop_rows(lengths)

    def _lengths(self) -> Tensor:
        cache = self.cache
        return torch.full((cache.batch,), cache.length) if cache.lengths is None else cache.lengths


def closed_up(staying: Sequence[int]) -> list[int]:
    """The rows that stay, in an order in which most do not move: the last ones take the places of those that leave."""
    count, kept = len(staying), set(staying)
    last = [row for row in staying if row >= count]
    return [row if row in kept else last.pop() for row in range(count)]


def without_ended(reader: Reader, sampling: "Sampling", staying: Sequence[int]) -> "Sampling":
    """Let a reader go on with these of its rows only; how their tokens are picked."""
    seeds, drawn = reader.init_seed, sampling.generators
    if isinstance(seeds, Sequence) and len(seeds) > 1:
        reader.init_seed = [seeds[row] for row in staying]
    return sampling if drawn is None else replace(sampling, generators=[drawn[row] for row in staying])


def _part(slot: Any, rows: Tensor | None, columns: int) -> tuple[Tensor, Tensor] | None:
    return slot.before(columns, rows) if slot.is_initialized else None


def _together(parts: Iterable[Tensor], order: Tensor, columns: int, along: int) -> Tensor:
    """Rows of several tables in one, in this order; shorter ones are filled up by ones, which nobody sees."""
    filled = []
    for part in parts:
        shape = list(part.shape)
        shape[along] = columns - shape[along]
        filled.append(torch.cat([part, part.new_ones(shape)], dim=along))
    return torch.cat(filled)[order.to(filled[0].device)]
