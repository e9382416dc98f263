"""The key/value cache of a looped model.

A looped model attends once per (loop, layer), so it keeps one slot of keys and values for each. All slots of a cache share
their columns: column c of row b is the same token everywhere. A pass first opens a `Span` of columns (`LoopCache.open`),
then every attention call writes into its slot there. Storage grows geometrically, is never concatenated, and can be
cropped, also row by row. A model that is read out early through layers with keys of their own (Huginn's coda) keeps those
in a `Branch`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

Exited = Literal["last", "skip"]

GROWTH = 1.5
BLOCK = 32  # columns are reserved in multiples of this


@dataclass(frozen=True, slots=True)
class Span:
    """The columns that a pass writes: `start` to `stop` in each row, or where rows differ `columns`; of some `rows` only."""

    batch: int
    start: int
    stop: int
    columns: Tensor | None = None  # [rows, time], where rows have different lengths
    rows: Tensor | None = None  # [rows], the rows that are still in the loop; None: all of the batch

    @property
    def time(self) -> int:
        return self.stop - self.start if self.columns is None else self.columns.shape[1]

    def token(self, at: int) -> "Span":
        """The column of the token at index `at` alone."""
        if self.columns is not None:
            columns = self.columns[:, at : at + 1]
            return replace(self, start=int(columns.min()), stop=int(columns.max()) + 1, columns=columns)
        start = self.start + at % self.time
        return replace(self, start=start, stop=start + 1)

    def keep(self, index: Tensor) -> "Span":
        """The same columns for the rows at `index` of this span's rows."""
        return replace(
            self,
            columns=None if self.columns is None else self.columns[index],
            rows=index if self.rows is None else self.rows[index],
        )


class Slot(CacheLayerMixin):
    """Keys and values of one (loop, layer): [batch, heads, capacity, head_dim]; the cache says which columns are in use."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, cache: "LoopCache") -> None:
        self._cache = cache
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def is_initialized(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._keys is not None

    @property
    def keys(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self._keys is None else self._keys[:, :, : self._cache.length]

    @property
    def values(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self._values is None else self._values[:, :, : self._cache.length]

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        assert self._keys is not None
        return self._keys.device

    @property
    def capacity(self) -> int:
        return 0 if self._keys is None else self._keys.shape[2]

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self._keys, self._values) if x is not None)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._grow(key_states, value_states, self._cache.span or Span(key_states.shape[0], 0, 0))

    def update(
        self, key_states: Tensor, value_states: Tensor, span: Span | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, time, head_dim] at the span; return all keys and values up to its end."""
        span = span or self._cache.span
        if span is None:
            raise ValueError("the cache has no open span: call LoopCache.open(batch, time) before a pass")
        if self._keys is None or self._values is None or self._keys.shape[2] < span.stop:
            self._grow(key_states, value_states, span)
        assert self._keys is not None and self._values is not None
        if span.columns is None and span.rows is None:  # the usual case: every row, the same columns
            self._keys[:, :, span.start : span.stop] = key_states
            self._values[:, :, span.start : span.stop] = value_states
            return self._keys[:, :, : span.stop], self._values[:, :, : span.stop]
        rows = _row_index(span, self._keys.device)
        columns = _column_index(span, self._keys.device)
        self._keys[rows, :, columns] = key_states.transpose(1, 2)  # [rows, time, heads, head_dim]
        self._values[rows, :, columns] = value_states.transpose(1, 2)
        if span.rows is None:
            return self._keys[:, :, : span.stop], self._values[:, :, : span.stop]
        return self._keys[span.rows, :, : span.stop], self._values[span.rows, :, : span.stop]

    def read(self, span: Span) -> tuple[Tensor, Tensor]:
        """What stands at the span: [rows, time, heads, head_dim] of keys and of values."""
        assert self._keys is not None and self._values is not None
        rows, columns = _row_index(span, self._keys.device), _column_index(span, self._keys.device)
        return self._keys[rows, :, columns], self._values[rows, :, columns]

    def _grow(self, key_states: Tensor, value_states: Tensor, span: Span) -> None:
        capacity = self._cache.capacity_for(span.stop, self.capacity)
        self._keys = _enlarged(self._keys, key_states, span.batch, capacity)
        self._values = _enlarged(self._values, value_states, span.batch, capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length + query_length, 0

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the older name of the same question

    def select(self, index: Tensor) -> None:
        """Keep, repeat or reorder rows."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, index.to(self._keys.device))
            self._values = self._values.index_select(0, index.to(self._values.device))

    def reset(self) -> None:
        self._keys = self._values = None


def _row_index(span: Span, device: torch.device) -> Tensor:
    rows = torch.arange(span.batch, device=device) if span.rows is None else span.rows
    return rows[:, None]  # [rows, 1]


def _column_index(span: Span, device: torch.device) -> Tensor:
    if span.columns is not None:
        return span.columns  # [rows, time]
    return torch.arange(span.start, span.stop, device=device)[None]  # [1, time]


def _enlarged(old: Tensor | None, like: Tensor, batch: int, capacity: int) -> Tensor:
    # zeros, not empty: a column that a row does not use is weighted by 0, and 0 × NaN would be NaN
    new = like.new_zeros(batch, like.shape[1], capacity, like.shape[3])
    if old is not None:
        new[:, :, : old.shape[2]] = old
    return new


class Branch:
    """An early readout with keys of its own: its slots, and the latents that go through them.

    Latents are parked at every pass and read out together when they are next needed: the numbers are the same, the
    passes fewer. They stay, so that a column can be read again.
    """

    def __init__(self, cache: "LoopCache", slots: int) -> None:
        self._cache = cache
        self.slots = [Slot(cache) for _ in range(slots)]
        self.latents: Tensor | None = None  # [batch, capacity, width]
        self.whole = True  # False when a pass was not parked, so that columns are missing
        self.kept = 0  # columns that are parked
        self.done: int | Tensor = 0  # columns that went through the slots; [batch] where rows differ

    def park(self, hidden: Tensor, span: Span) -> None:
        """Keep the latents [batch, time, width] of the span's columns."""
        if self.latents is None or self.latents.shape[1] < span.stop:
            current = 0 if self.latents is None else self.latents.shape[1]
            grown = hidden.new_zeros(span.batch, self._cache.capacity_for(span.stop, current), hidden.shape[2])
            if self.latents is not None:
                grown[:, :current] = self.latents
            self.latents = grown
        if span.columns is None:
            self.latents[:, span.start : span.stop] = hidden
        else:
            self.latents[_row_index(span, hidden.device), span.columns] = hidden
        self.whole = self.whole and span.start <= self.kept
        self.kept = max(self.kept, span.stop)

    def due(self, span: Span, count: int) -> tuple[Tensor, Span]:
        """The latents [batch, time, width] up to the span's end that have not gone through the slots, at least `count`,
        and their columns. Rows that are ahead of others go over columns again, to the same effect."""
        assert self.latents is not None
        if span.columns is None and isinstance(self.done, int):
            start = max(0, min(self.done, span.stop - count))
            self.done = span.stop
            return self.latents[:, start : span.stop], Span(span.batch, start, span.stop)
        stops = span.columns[:, -1] + 1 if span.columns is not None else torch.full((span.batch,), span.stop)
        stops = stops.to(self.latents.device)
        time = max(count, int((stops - self.done).max()))
        columns = (stops[:, None] - time + torch.arange(time, device=stops.device)).clamp(min=0)
        self.done = stops
        rows = torch.arange(span.batch, device=stops.device)[:, None]
        return self.latents[rows, columns], Span(span.batch, int(columns.min()), int(stops.max()), columns=columns)

    def crop(self, length: int) -> None:
        self.kept = min(self.kept, length)
        self.done = min(self.done, length) if isinstance(self.done, int) else self.done.clamp(max=length)

    def crop_rows(self, lengths: Tensor) -> None:
        done = torch.full_like(lengths, self.done) if isinstance(self.done, int) else self.done
        done = torch.minimum(done, lengths)
        even = bool((lengths == lengths[0]).all())
        self.done = int(done.min()) if even else done

    def select(self, index: Tensor) -> None:
        for slot in self.slots:
            slot.select(index)
        if self.latents is not None:
            self.latents = self.latents.index_select(0, index.to(self.latents.device))
        if isinstance(self.done, Tensor):
            self.done = self.done[index.to(self.done.device)]

    @property
    def nbytes(self) -> int:
        return 0 if self.latents is None else self.latents.numel() * self.latents.element_size()


class LoopCache(Cache):
    """A transformers `Cache` with one slot per (loop, layer).

    `exited` says how later tokens see, at loop r, a token that left the loop before r: by its `"last"` computed entry,
    or not at all (`"skip"`, the public Huginn code's default). `limit` bounds the growth, for example by the
    longest text that a call can make.
    """

    def __init__(self, exited: Exited = "last", limit: int | None = None) -> None:
        if exited not in ("last", "skip"):
            raise ValueError(f'exited={exited!r}: a token that left early is seen by its "last" entry or is "skip"ped')
        super().__init__(layers=[])
        self.exited: Exited = exited
        self.limit = limit
        self.batch = 0
        self.length = 0  # columns in use
        self.lengths: Tensor | None = None  # [batch], where rows have different lengths
        self.span: Span | None = None  # what the pass under way writes
        self.valid: Tensor | None = None  # [batch, length] bool, False for padding; None: no padding
        self.depths: Tensor | None = None  # [batch, length] loops each column ran; None: nothing left early
        self.branches: dict[Any, Branch] = {}

    def open(self, batch: int, time: int, padding: Tensor | None = None) -> Span:
        """Take the next `time` columns of each row; `padding` [batch, time] marks real tokens by True."""
        if self.batch not in (0, batch):
            raise ValueError(f"a pass of {batch} rows on a cache of {self.batch} rows")
        self.batch = batch
        if self.lengths is None:
            span = Span(batch, self.length, self.length + time)
        else:
            columns = self.lengths[:, None] + torch.arange(time, device=self.lengths.device)
            span = Span(batch, int(self.lengths.min()), int(columns.max()) + 1, columns=columns)
            self.lengths = self.lengths + time
        self._extend_valid(span, padding)
        if self.depths is not None:
            self.depths = _extended(self.depths, span.stop, fill=_FULL_DEPTH)
            # a column that a longer row still reaches may hold the depth of a token that this row had cropped
            device = self.depths.device
            self.depths[_row_index(span, device), _column_index(span, device)] = _FULL_DEPTH
        self.length, self.span = span.stop, span
        return span

    def _extend_valid(self, span: Span, padding: Tensor | None) -> None:
        if self.valid is None:
            if padding is None:
                return
            self.valid = torch.ones(span.batch, span.start, dtype=torch.bool, device=padding.device)
        self.valid = _extended(self.valid, span.stop, fill=True)
        if padding is not None:
            self.valid[_row_index(span, padding.device), _column_index(span, padding.device)] = padding

    def slot(self, index: int) -> Slot:
        while len(self.layers) <= index:
            self.layers.append(Slot(self))
        return self.layers[index]  # pyright: ignore[reportReturnType]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self.slot(layer_idx).update(key_states, value_states)

    def branch(self, name: Any, slots: int) -> Branch:
        """The early readout of that name, made empty at its first use."""
        if name not in self.branches:
            self.branches[name] = Branch(self, slots)
        return self.branches[name]

    def leave(self, span: Span, loop: int, slots: Sequence[Sequence[int]]) -> None:
        """Note that the span's tokens left after `loop` loops; `slots[r]` are the slots of loop r + 1, up to the last."""
        if self.exited == "last":
            for source, *later in zip(*slots[loop - 1 :], strict=True):
                keys, values = self.slot(source).read(span)  # [rows, time, heads, head_dim]
                for target in later:
                    self.slot(target).update(keys.transpose(1, 2), values.transpose(1, 2), span)
            return
        device = next(slot.device for slot in self._all_slots() if slot.is_initialized)
        if self.depths is None:
            self.depths = torch.full((self.batch, self.length), _FULL_DEPTH, dtype=torch.int32, device=device)
        self.depths[_row_index(span, device), _column_index(span, device)] = loop

    def seen_at(self, loop: int) -> Tensor | None:
        """[batch, length] columns that have keys at this loop, or None if all have."""
        return None if self.depths is None else self.depths >= loop

    def capacity_for(self, columns: int, current: int) -> int:
        grown = max(columns, int(current * GROWTH))
        capacity = -(-grown // BLOCK) * BLOCK
        return capacity if self.limit is None else max(columns, min(capacity, self.limit))

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last columns: a negative number is how many (0: none), a positive one the length to keep.

        The positive form is that of older transformers; `reset` empties the cache.
        """
        keep = self.length + tokens_to_remove if tokens_to_remove <= 0 else tokens_to_remove
        self._crop_columns(max(0, min(keep, self.length)))
        self.lengths = None if self.lengths is None else self.lengths.clamp(max=self.length)

    def crop_rows(self, lengths: Tensor) -> None:
        """Keep `lengths[b]` columns of row b: what each row accepted of a draft."""
        self._crop_columns(int(lengths.max()))
        self.lengths = None if bool((lengths == self.length).all()) else lengths
        for branch in self.branches.values():
            branch.crop_rows(lengths)

    def _crop_columns(self, length: int) -> None:
        self.length, self.span = length, None
        self.valid = None if self.valid is None else self.valid[:, :length]
        self.depths = None if self.depths is None else self.depths[:, :length]
        for branch in self.branches.values():
            branch.crop(length)

    def _all_slots(self) -> Iterator[Slot]:
        yield from self.layers  # pyright: ignore[reportReturnType]
        for branch in self.branches.values():
            yield from branch.slots

    @property
    def nbytes(self) -> int:
        """Bytes that the storage takes now."""
        return sum(slot.nbytes for slot in self._all_slots()) + sum(branch.nbytes for branch in self.branches.values())

    def _select(self, index: Tensor) -> None:
        for layer in self.layers:
            layer.select(index)  # pyright: ignore[reportAttributeAccessIssue]
        for branch in self.branches.values():
            branch.select(index)
        self.valid = None if self.valid is None else self.valid[index.to(self.valid.device)]
        self.depths = None if self.depths is None else self.depths[index.to(self.depths.device)]
        self.lengths = None if self.lengths is None else self.lengths[index.to(self.lengths.device)]
        self.batch, self.span = len(index), None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(indices if indices.dtype != torch.bool else indices.nonzero().squeeze(1))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select(torch.arange(self.batch).repeat_interleave(repeats))

    def reset(self) -> None:
        self.__init__(self.exited, self.limit)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def is_initialized(self) -> bool:
        return self.length > 0

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return True

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self.layers)


_FULL_DEPTH = 2**31 - 1


def _extended(table: Tensor, columns: int, fill: int | bool) -> Tensor:
    missing = columns - table.shape[1]
    if missing <= 0:
        return table.clone()
    return torch.cat([table, table.new_full((table.shape[0], missing), fill)], dim=1)
