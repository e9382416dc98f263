"""The key/value cache of a looped model.

A looped model attends once per (loop, layer), so it keeps one slot of keys and values for each. All slots of a cache share
their columns: column c of row b is the same token everywhere. A pass first opens a `Span` of columns (`LoopCache.open`),
then every attention call writes into its slot there. Storage is taken once where the longest text is known, grows
geometrically otherwise, is never concatenated, and can be cropped, also row by row. A model that is read out early through
layers with keys of their own (Huginn's coda) keeps those in a `Branch`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from loopcd.models.slots import Columns, Slot, Span, column_index, moved_rows, row_index, sent, stored

Exited = Literal["last", "skip"]


class Branch:
    """An early readout with keys of its own: its slots, and the latents that go through them.

    Latents are parked at every pass and read out together when they are next needed: the numbers are the same, the
    passes fewer. They stay, so that a column can be read again.
    """

    def __init__(self, columns: Columns, slots: int) -> None:
        self._columns = columns
        self.slots = [Slot(columns) for _ in range(slots)]
        self.latents: Tensor | None = None  # [batch, capacity, width]
        self.whole = True  # False when a pass was not parked, so that columns are missing
        self.kept = 0  # columns that are parked
        self.done: int | Tensor = 0  # columns that went through the slots; [batch] on the CPU where rows differ

    def park(self, hidden: Tensor, span: Span) -> None:
        """Keep the latents [batch, time, width] of the span's columns."""
        if self.latents is None or self.latents.shape[1] < span.stop:
            current = 0 if self.latents is None else self.latents.shape[1]
            grown = stored(hidden.new_zeros, span.batch, self._columns.capacity_for(span.stop, current), hidden.shape[2])
            if self.latents is not None:
                grown[:, :current] = self.latents
            self.latents = grown
        if span.columns is None:
            self.latents[:, span.start : span.stop] = hidden
        else:
            self.latents[row_index(span, hidden.device), span.columns] = hidden
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
        lengths = self._columns.lengths  # which are those after the span
        stops = torch.full((span.batch,), span.stop) if lengths is None else lengths
        time = max(count, int((stops - self.done).max()))
        columns = (stops[:, None] - time + torch.arange(time)).clamp(min=0)
        self.done = stops
        there = columns.to(self.latents.device, non_blocking=True)
        rows = torch.arange(span.batch, device=there.device)[:, None]
        return self.latents[rows, there], Span(span.batch, int(columns.min()), int(stops.max()), columns=there)

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
            new = stored(self.latents.new_empty, len(index), *self.latents.shape[1:])
            self.latents = new.copy_(self.latents.index_select(0, index.to(new.device)))
        if isinstance(self.done, Tensor):
            self.done = self.done[index.to(self.done.device)]

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self.slots) + (0 if self.latents is None else self.latents.nbytes)


class Reach:
    """How many columns of each row have entries at each loop, once tokens left early.

    The columns beyond are those of tokens that had left before that loop. They get their last computed entries there only
    when a later token of the row enters the loop, which most loops beyond the usual exit never see.
    """

    def __init__(self, span: Span, loop: int) -> None:
        """Tokens of this pass, before which none left early, leave after `loop` loops."""
        self.base = span.starts()  # at loops that no pass has entered since
        self.by_loop = {each: [start + span.time for start in self.base] for each in range(1, loop + 1)}

    def enter(self, span: Span, loop: int, whole: Span | None = None) -> dict[tuple[int, int], list[int]]:
        """Note that the span's tokens run loop `loop`. The columns, from one to another, that will be missed there, and in
        which rows; with the `whole` of a pass of which only the span's rows stay, also in the others, their own included."""
        reached, starts, time = self.by_loop.setdefault(loop, list(self.base)), span.starts(), span.time
        missing: dict[tuple[int, int], list[int]] = {}
        if span.rows is None and reached == starts:  # the usual case: nothing is missing
            self.by_loop[loop] = [start + time for start in starts]
            return missing
        for row, start in zip(span.numbers(), starts, strict=True):
            if reached[row] < start:
                missing.setdefault((reached[row], start), []).append(row)
            reached[row] = start + time
        if whole is not None and span.rows is not None:
            there, staying = self.by_loop.get(loop - 1, self.base), set(span.numbers())
            for row, start in enumerate(whole.starts()):
                if row not in staying and there[row] >= start + time:
                    missing.setdefault((reached[row], start + time), []).append(row)
                    reached[row] = start + time
        return missing

    def missed(self, start: int, loop: int) -> list[tuple[int, int]]:
        """As `enter`, of one text whose token at column `start` runs loop `loop`."""
        reached = self.by_loop.get(loop)
        if reached is None:
            reached = self.by_loop[loop] = list(self.base)
        before, reached[0] = reached[0], start + 1
        return [(before, start)] if before < start else []

    def leave(self, span: Span, loop: int) -> None:
        """The span's tokens left after `loop` loops: what later ones that they have entered hold of them does not count."""
        for beyond in [each for each in self.by_loop if each > loop]:
            reached = self.by_loop[beyond]
            for row, start in zip(span.numbers(), span.starts(), strict=True):
                reached[row] = min(reached[row], start)

    def crop(self, lengths: Sequence[int]) -> None:
        self._each(lambda reached: [min(pair) for pair in zip(reached, lengths, strict=True)])

    def select(self, index: Sequence[int]) -> None:
        self._each(lambda reached: [reached[row] for row in index])

    def _each(self, change: Callable[[list[int]], list[int]]) -> None:
        self.base = change(self.base)
        self.by_loop = {loop: change(reached) for loop, reached in self.by_loop.items()}


def _shared(name: str) -> Any:
    return property(lambda cache: getattr(cache.columns, name), lambda cache, value: setattr(cache.columns, name, value))


class LoopCache(Cache):
    """A transformers `Cache` with one slot per (loop, layer).

    `exited` says how later tokens see, at loop r, a token that left the loop before r: by its `"last"` computed entry,
    or not at all (`"skip"`, the public Huginn code's default). `limit` is the longest text that a call can make: room for it
    is taken at once, and a longer one is still possible.
    """

    limit, length, lengths, span = map(_shared, ("limit", "length", "lengths", "span"))

    def __init__(self, exited: Exited = "last", limit: int | None = None) -> None:
        if exited not in ("last", "skip"):
            raise ValueError(f'exited={exited!r}: a token that left early is seen by its "last" entry or is "skip"ped')
        super().__init__(layers=[])
        self.exited: Exited = exited
        self.columns = Columns(limit)
        self.batch = 0
        self.behind = 0  # tokens that were written after these and not read
        self.behind_by: Any = None  # and by what loops, exit rule and seed they would have been
        self.valid: Tensor | None = None  # [batch, length] bool, False for padding; None: no padding
        self.depths: Tensor | None = None  # "skip": [batch, length] loops each column ran; None: nothing left early
        self.reach: Reach | None = None  # "last": which loops' columns are not filled in; None: nothing left early
        self.early: int | None = None  # the first column that may have left early; None: nothing left early
        self.ran: dict[int, int] = {}  # by loop, the columns of the longest row that ran it; from the second loop on
        self.branches: dict[Any, Branch] = {}
        self.input_ids: Tensor | None = None  # [batch, length], where a model looks its tokens up again

    def open(
        self, batch: int, time: int, padding: Tensor | None = None, device: torch.device | None = None, num_loops: int = 0
    ) -> Span:
        """Take the next `time` columns of each row. The tokens' device.

        `padding` marks real tokens by True, [batch, time], or [batch, all columns]: then it can hide what is held, too.
        `num_loops`: the loops that somebody else will have run for them, and not say so one by one (`run`).
        """
        if self.batch not in (0, batch):
            raise ValueError(f"a pass of {batch} rows on a cache of {self.batch} rows")
        self.batch, self.behind = batch, 0
        if self.lengths is None:
            span = Span(batch, self.length, self.length + time)
        else:
            columns = self.lengths[:, None] + torch.arange(time)
            span = Span(batch, int(self.lengths.min()), int(columns.max()) + 1, columns.to(device or "cpu", non_blocking=True))
            self.lengths = self.lengths + time
        if padding is not None and self.lengths is None and padding.shape[1] == span.stop:
            self.valid = padding.clone() if self.valid is None else padding & _extended(self.valid, span.stop, fill=True)
        elif padding is not None:
            self.valid = _noted(self.valid, span, padding[:, -time:], fill=True)
        elif self.valid is not None:
            self.valid = _extended(self.valid, span.stop, fill=True)
        if self.depths is not None:
            self.depths = _extended(self.depths, span.stop, fill=_FULL_DEPTH)
            # a column that a longer row still reaches may hold the depth of a token that this row had cropped
            device = self.depths.device
            self.depths[row_index(span, device), column_index(span, device)] = _FULL_DEPTH
        self.length, self.span = span.stop, span
        for loop in range(2, num_loops + 1):
            self.run(span, loop)
        return span

    def remember(self, span: Span, input_ids: Tensor) -> None:
        """Keep the token ids [batch, time] of the span."""
        self.input_ids = _noted(self.input_ids, span, input_ids.long(), fill=0)

    def remembered(self, span: Span) -> Tensor | None:
        """The token ids [batch, time] of the span, if they are kept."""
        if self.input_ids is None:
            return None
        return self.input_ids[row_index(span, self.input_ids.device), column_index(span, self.input_ids.device)]

    def slot(self, index: int) -> Slot:
        while len(self.layers) <= index:
            self.layers.append(Slot(self.columns))
        return self.layers[index]  # pyright: ignore[reportReturnType]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self.slot(layer_idx).update(key_states, value_states)

    def branch(self, name: Any, slots: int) -> Branch:
        """The early readout of that name, made empty at its first use."""
        if name not in self.branches:
            self.branches[name] = Branch(self.columns, slots)
        return self.branches[name]

    def leave(self, span: Span, loop: int, device: torch.device, entered: int | None = None) -> None:
        """Note that the span's tokens, some of those of the open pass, left after `loop` loops; their latents' device.

        `entered`: the loops that were run, if more than `loop`, until it was known that these had left.
        """
        entered = entered or loop
        self.early = span.start if self.early is None else self.early
        if self.exited == "last":
            if self.reach is None:
                self.reach = Reach(self.span or span, entered)
            if entered > loop:
                self.reach.leave(span, loop)
            return
        if self.depths is None:
            self.depths = torch.full((self.batch, self.length), _FULL_DEPTH, dtype=torch.int32, device=device)
        else:
            self.depths = self.depths.clone()  # it may have been made under inference mode, which may have ended
        self.depths[row_index(span, device), column_index(span, device)] = loop

    def run(self, span: Span, loop: int) -> None:
        """Note that the span's tokens run loop `loop`, which those before them must have run, unless they left early."""
        if self.ran.get(loop, 0) < (span.stop - span.time if self.early is None else self.early):
            if span.columns is None:
                self.crop(-span.time)  # a refused pass leaves no trace
            raise ValueError(
                f"the cache holds tokens that ran num_loops={loop - 1}, which cannot be seen at loop {loop}: "
                f"use num_loops={loop - 1}, or a new cache"
            )
        self.ran[loop] = span.stop

    def enter(self, span: Span, loop: int, slots: Sequence[int], before: Sequence[int]) -> None:
        """Before the span's tokens run loop `loop`: fill in, by the entries of the loop before, what will be missed there. Rows
        of the pass that have left it are filled in at once, since together with others they cost less than later alone."""
        missed, whole = {} if self.reach is None else self.reach.enter(span, loop, self.span), self.span
        for (start, stop), rows in missed.items():
            # of the columns of the pass itself all rows are copied at once: those that stay write theirs over it
            own = whole is not None and whole.columns is None and (start, stop) == (whole.start, whole.stop)
            index = None if own or len(rows) == self.batch else torch.tensor(rows)
            for source, target in zip(before, slots, strict=True):
                self.slot(target).take_over(self.slot(source), index, slice(start, stop), span)

    def seen_at(self, loop: int) -> Tensor | None:
        """[batch, length] columns that have keys at this loop, or None if all have."""
        return None if self.depths is None else self.depths >= loop

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last columns: a negative number is how many (0: none), a positive one the length to keep.

        The positive form is that of older transformers; `reset` empties the cache.
        """
        keep = self.length + tokens_to_remove if tokens_to_remove <= 0 else tokens_to_remove
        self._crop_columns(max(0, min(keep, self.length)))
        self.lengths = None if self.lengths is None else self.lengths.clamp(max=self.length)

    def crop_rows(self, lengths: Tensor) -> None:
        """Keep `lengths[b]` (on the CPU) columns of row b: what each row accepted of a draft."""
        self._crop_columns(int(lengths.max()))
        self.lengths = None if bool((lengths == self.length).all()) else lengths
        if self.reach is not None:
            self.reach.crop(lengths.tolist())
        for branch in self.branches.values():
            branch.crop_rows(lengths)

    def _crop_columns(self, length: int) -> None:
        self.length, self.span, self.behind = length, None, 0
        self.ran = {loop: min(ran, length) for loop, ran in self.ran.items()}
        self.early = None if self.early is None else min(self.early, length)
        self.valid = None if self.valid is None else self.valid[:, :length]
        self.depths = None if self.depths is None else self.depths[:, :length]
        self.input_ids = None if self.input_ids is None else self.input_ids[:, :length]
        if self.reach is not None:
            self.reach.crop([length] * self.batch)
        for branch in self.branches.values():
            branch.crop(length)

    @property
    def nbytes(self) -> int:
        """Bytes that the storage takes now."""
        held: Any = (*self.layers, *self.branches.values())
        return sum(each.nbytes for each in held)

    def _select(self, index: Tensor) -> None:
        moved = moved_rows(index)
        for layer in self.layers:
            layer.select(index, moved)  # pyright: ignore[reportAttributeAccessIssue]
        for branch in self.branches.values():
            branch.select(index)
        self.valid = None if self.valid is None else self.valid[sent(index, self.valid.device)]
        self.depths = None if self.depths is None else self.depths[sent(index, self.depths.device)]
        self.input_ids = None if self.input_ids is None else self.input_ids[sent(index, self.input_ids.device)]
        self.lengths = None if self.lengths is None else self.lengths[sent(index, self.lengths.device)]
        if self.reach is not None:
            self.reach.select(index.tolist())
        self.batch, self.span = len(index), None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(indices if indices.dtype != torch.bool else indices.nonzero().squeeze(1))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select(torch.arange(self.batch).repeat_interleave(repeats))

    def reset(self) -> None:
        LoopCache.__init__(self, self.exited, self.limit)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def is_initialized(self) -> bool:
        return self.length > 0


_FULL_DEPTH = 2**31 - 1


def _noted(table: Tensor | None, span: Span, values: Tensor, fill: int | bool) -> Tensor:
    """The table [batch, columns] with the values [batch, time] at the span."""
    table = values.new_full((span.batch, span.start), fill) if table is None else table
    table = _extended(table, span.stop, fill)
    table[row_index(span, values.device), column_index(span, values.device)] = values
    return table


def _extended(table: Tensor, columns: int, fill: int | bool) -> Tensor:
    missing = columns - table.shape[1]
    if missing <= 0:
        return table.clone()
    return torch.cat([table, table.new_full((table.shape[0], missing), fill)], dim=1)
