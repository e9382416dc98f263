"""Where keys and values are kept: a `Slot` for each (loop, layer), the `Columns` that these share, and the `Span` of a pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

GROWTH = 1.5


def sent(values: Tensor | Sequence[Any], device: torch.device) -> Tensor:
    """Numbers of the host on the device, without waiting for it."""
    made = values if isinstance(values, Tensor) else torch.tensor(values)
    return made.to(device, non_blocking=True)


def stored(make: Callable[..., Tensor], *size: int) -> Tensor:
    """Storage by `new_empty` or `new_zeros` of a tensor: made under inference mode, it could be written there alone."""
    with torch.inference_mode(False):
        return make(size)


@dataclass(frozen=True, slots=True)
class Span:
    """The columns that a pass writes: `start` to `stop` in each row, or where rows differ `columns`; of some `rows` only."""

    batch: int
    start: int
    stop: int
    columns: Tensor | None = None  # [rows, time], where rows have different lengths
    rows: Tensor | None = None  # [rows], the rows that are still in the loop; None: all of the batch
    known: tuple[int, ...] | None = None  # the same on the host, where it is known there

    @property
    def time(self) -> int:
        return self.stop - self.start if self.columns is None else self.columns.shape[1]

    def starts(self) -> list[int]:
        """The first column of each of the span's rows."""
        if self.columns is not None:
            return self.columns[:, 0].tolist()
        return [self.start] * (self.batch if self.rows is None else len(self.rows))

    def numbers(self) -> Sequence[int]:
        """The span's rows; the device is waited for only where they are not known on the host."""
        if self.rows is None:
            return range(self.batch)
        return self.rows.tolist() if self.known is None else self.known

    def keep(self, index: Tensor, known: Sequence[int] | None = None) -> "Span":
        """The same columns for the rows at `index` of this span's rows; `known` is the index on the host."""
        here = known is not None and (self.rows is None or self.known is not None)
        return replace(
            self,
            columns=None if self.columns is None else self.columns[index],
            rows=index if self.rows is None else self.rows[index],
            known=tuple(self.numbers()[row] for row in known or ()) if here else None,
        )


@dataclass
class Columns:
    """Which columns of a cache's slots are in use.

    The slots have this and not the cache itself, which has them: so whoever drops the cache frees its storage at once. Storage
    that is found only by the garbage collector may be as large as the device.
    """

    limit: int | None = None  # the longest text that a call can make
    length: int = 0  # columns in use
    lengths: Tensor | None = None  # [batch] on the CPU, where rows have different lengths
    span: Span | None = None  # what the pass under way writes

    def capacity_for(self, columns: int, current: int) -> int:
        if self.limit is not None and columns <= self.limit:
            return self.limit
        return in_blocks(max(columns, int(current * GROWTH)))


class Slot(CacheLayerMixin):
    """Keys and values of one (loop, layer): [batch, heads, capacity, head_dim]."""

    is_croppable = True

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._kept: tuple[Tensor, Tensor] | None = None  # keys and values
        self._clean = 0  # columns of the storage that hold numbers

    @property
    def is_initialized(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._kept is not None

    @property
    def keys(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self._kept is None else self._kept[0][:, :, : self._columns.length]

    @property
    def values(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self._kept is None else self._kept[1][:, :, : self._columns.length]

    @property
    def capacity(self) -> int:
        return 0 if self._kept is None else self._kept[0].shape[2]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._kept or ())

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._grow(key_states, value_states, self._columns.span or Span(key_states.shape[0], 0, 0))

    def update(
        self, key_states: Tensor, value_states: Tensor, span: Span | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, time, head_dim] at the span; return all keys and values up to its end."""
        span = span or self._columns.span
        if span is None:
            raise ValueError("the cache has no open span: call LoopCache.open(batch, time) before a pass")
        keys, values = self.write(key_states, value_states, span)
        if span.rows is None:
            return keys, values
        rows = row_index(span, keys.device)[:, 0]
        return keys.index_select(0, rows), values.index_select(0, rows)

    def write(self, key_states: Tensor, value_states: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """As `update`, without a copy of the span's rows: what all rows have."""
        if self._clean < span.stop:
            self._grow(key_states, value_states, span)
        assert self._kept is not None
        keys, values = self._kept
        if span.columns is None and span.rows is None:  # the usual case: every row, the same columns
            keys[:, :, span.start : span.stop] = key_states
            values[:, :, span.start : span.stop] = value_states
        elif span.columns is None and span.rows is not None:
            rows = span.rows.to(keys.device)
            keys[:, :, span.start : span.stop].index_copy_(0, rows, key_states)
            values[:, :, span.start : span.stop].index_copy_(0, rows, value_states)
        else:
            rows, columns = row_index(span, keys.device), column_index(span, keys.device)
            keys[rows, :, columns] = key_states.transpose(1, 2)  # [rows, time, heads, head_dim]
            values[rows, :, columns] = value_states.transpose(1, 2)
        return keys[:, :, : span.stop], values[:, :, : span.stop]

    def before(self, stop: int, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, heads, stop, head_dim] of the columns before `stop`; of some rows, a copy."""
        assert self._kept is not None
        keys, values = self._kept
        at = slice(None) if rows is None else sent(rows, keys.device)
        return keys[at, :, :stop], values[at, :, :stop]

    def take_over(self, source: "Slot", rows: Tensor | None, columns: slice, span: Span) -> None:
        """Copy the entries of these columns of some rows (None: all) from another slot, in a pass of `span`."""
        assert source._kept is not None
        if self._clean < span.stop:
            self._grow(*source._kept, span)
        assert self._kept is not None
        rows = None if rows is None else sent(rows, self._kept[0].device)
        for own, other in zip(self._kept, source._kept, strict=True):
            there, here = own[:, :, columns], other[:, :, columns]
            if rows is None:
                there.copy_(here)
            else:
                there.index_copy_(0, rows, here.index_select(0, rows))

    def _grow(self, key_states: Tensor, value_states: Tensor, span: Span) -> None:
        if self.capacity < span.stop:
            capacity = self._columns.capacity_for(span.stop, self.capacity)
            keys, values = self._kept or (None, None)
            keys = self._enlarged(keys, key_states, span.batch, capacity)
            self._kept = keys, self._enlarged(values, value_states, span.batch, capacity)
        assert self._kept is not None
        # zeros: a column that a row does not use is weighted by 0, and 0 × NaN would be NaN. They are written little by little,
        # so that room which is never used is never touched
        clean = min(self.capacity, in_blocks(span.stop))
        for kept in self._kept:
            kept[:, :, self._clean : clean] = 0
        self._clean = clean

    def _enlarged(self, old: Tensor | None, like: Tensor, batch: int, capacity: int) -> Tensor:
        new = stored(like.new_empty, batch, like.shape[1], capacity, like.shape[3])
        if old is not None:
            new[:, :, : self._clean] = old[:, :, : self._clean]
        return new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._columns.length + query_length, 0

    def get_seq_length(self) -> int:
        return self._columns.length

    def get_max_length(self) -> int:
        return -1

    def select(self, index: Tensor, moved: tuple[Tensor, Tensor] | None = None) -> None:
        """Keep, repeat or reorder rows; `moved` is what `moved_rows` says of them."""
        if self._kept is None:
            return
        keys, values = self._kept
        if moved is None:
            index = sent(index, keys.device)
            self._kept = self._selected(keys, index), self._selected(values, index)
            return
        there, here = (sent(each, keys.device) for each in moved)
        for kept in (keys[:, :, : self._clean], values[:, :, : self._clean]):
            kept.index_copy_(0, there, kept.index_select(0, here))
        with torch.inference_mode(False):  # what is kept is written later, maybe with gradients
            self._kept = keys[: len(index)], values[: len(index)]

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """Hold these columns [batch, heads, columns, head_dim] and no others, with as much room as before."""
        capacity, self._clean = self.capacity, keys.shape[2]
        self._kept = self._enlarged(keys, keys, len(keys), capacity), self._enlarged(values, values, len(values), capacity)

    def _selected(self, old: Tensor, index: Tensor) -> Tensor:
        new = stored(old.new_empty, len(index), *old.shape[1:])
        new[:, :, : self._clean] = old[:, :, : self._clean].index_select(0, index)
        return new


class Beside:
    """A slot as tokens see it that are not kept there: what stands before column `stop` in their rows, then their own."""

    def __init__(self, slot: Slot, stop: int, rows: Tensor | None = None) -> None:
        self.slot, self.stop, self.rows = slot, stop, rows

    def update(self, key_states: Tensor, value_states: Tensor, span: Span | None = None) -> tuple[Tensor, Tensor]:
        """All keys and values that the tokens see; nothing is written."""
        if self.stop == 0:
            return key_states, value_states
        keys, values = self.slot.before(self.stop, self.rows)
        return torch.cat([keys, key_states], dim=2), torch.cat([values, value_states], dim=2)


def moved_rows(index: Tensor) -> tuple[Tensor, Tensor] | None:
    """Where `index` leaves rows where they are, but for some that come from behind it: the places of these, and where they come
    from. None: another order, or nothing that goes."""
    there = (index != torch.arange(len(index), device=index.device)).nonzero().squeeze(1)
    here = index[there]
    return (there, here) if bool((here >= len(index)).all()) else None


def row_index(span: Span, device: torch.device) -> Tensor:
    return _numbered(span.batch, device) if span.rows is None else span.rows.to(device)[:, None]  # [rows, 1]


@lru_cache(maxsize=64)
def _numbered(rows: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else what decoding made could not serve training
        return torch.arange(rows, device=device)[:, None]


def column_index(span: Span, device: torch.device) -> Tensor:
    if span.columns is not None:
        return span.columns.to(device)  # [rows, time]
    return torch.arange(span.start, span.stop, device=device)[None]  # [1, time]


BLOCK = 32  # columns


def in_blocks(columns: int) -> int:
    """So many columns, or some more."""
    return -(-columns // BLOCK) * BLOCK
