"""Room for the keys and values of several texts, each at a place of its own and as long as it is, not as long as the longest.

A text has a `PlaceCache`, a cache of one row whose slots are views of the common storage: whatever works on one text works
there. Texts that go on together, each at its own column and its own loop, are seen by the layers through a `Together`: it
writes all their keys at once, and attends on views of the storage. Loops and places are one dimension of it, so texts at any
loops whose numbers there are evenly spaced are one view; any two are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loopcd.models.cache import Exited, LoopCache
from loopcd.models.layers import attention
from loopcd.models.slots import GROWTH, Columns, Slot, Span, in_blocks, sent, stored

if TYPE_CHECKING:
    from loopcd.models.stages import LoopedModel

TRIANGLE = 1024  # columns up to which what tokens do not see is looked up


class Places:
    """The storage of `rows` texts that run up to `num_loops` loops."""

    def __init__(self, model: "LoopedModel", rows: int, num_loops: int) -> None:
        self.rows, self.num_loops, self.slots = rows, num_loops, model.slot_count(num_loops)
        self.limit = 0  # columns that the longest text so far may need
        self.implementation = model.config._attn_implementation or "sdpa"
        first = model.loop_slots(1)
        self.looped = frozenset(first)
        # a slot of a later loop is part of the storage of the same layer's first loop
        self._part = {
            index: (base, (loop - 1) * rows)
            for loop in range(1, num_loops + 1)
            for base, index in zip(first, model.loop_slots(loop), strict=True)
        }
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # [loops × rows or rows, heads, capacity, head_dim]

    def part(self, index: int, place: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values [1, heads, capacity, head_dim] of a slot at a place; None where nothing was written yet."""
        base, offset = self._part.get(index, (index, 0))
        if base not in self._kept:
            return None
        at = slice(offset + place, offset + place + 1)
        keys, values = self._kept[base]
        return keys[at], values[at]

    def rows_of(self, index: int, at: Tensor, stop: int) -> tuple[Tensor, Tensor]:
        """Copies [rows, heads, stop, head_dim] of what a slot has at these places before column `stop`."""
        base, offset = self._part.get(index, (index, 0))
        keys, values = self._kept[base]
        at = sent(at, keys.device) + offset
        return keys[at, :, :stop], values[at, :, :stop]

    def keep(self, index: int, at: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write a slot's keys and values [rows, heads, time, head_dim] at these places, from the first column on."""
        offset, time = self._part.get(index, (index, 0))[1], keys.shape[2]
        for kept, new in zip(self.reserve(index, keys, values, time), (keys, values), strict=True):
            kept[at + offset, :, :time] = new

    def reserve(self, index: int, keys: Tensor, values: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """The storage that a slot is part of, with room for so many columns."""
        base = self._part.get(index, (index, 0))[0]
        old = self._kept.get(base)
        if old is None or old[0].shape[2] < columns:
            grown = in_blocks(max(columns, int(GROWTH * (0 if old is None else old[0].shape[2]))))
            capacity = max(columns, min(grown, self.limit))
            number = self.rows * (self.num_loops if base in self.looped else 1)
            new = tuple(stored(each.new_zeros, number, each.shape[1], capacity, each.shape[3]) for each in (keys, values))
            for before, after in zip(old or (), new, strict=False):
                after[:, :, : before.shape[2]] = before
            self._kept[base] = new[0], new[1]
        return self._kept[base]

    def carry(self, numbers: Sequence[int], columns: Sequence[int], device: Any) -> None:
        """Entries of tokens that left before a loop: those at these numbers (of loops and places) and columns become those of
        the loop before."""
        target, at = sent(numbers, device), sent(columns, device)
        source = target - self.rows
        for base in self.looped:
            for kept in self._kept[base]:
                kept[target, :, at] = kept[source, :, at]

    def clear(self, place: int) -> None:
        """Leave nothing of a text whose numbers went wrong: a column that is not seen is weighted by 0, and 0 × NaN is NaN."""
        for pair in self._kept.values():
            for kept in pair:
                kept[place :: self.rows] = 0


class PlaceSlot(Slot):
    """A slot whose keys and values are a text's part of the common storage."""

    def __init__(self, columns: Columns, places: Places, index: int, place: int) -> None:
        self._places, self._index, self._place = places, index, place
        super().__init__(columns)

    # the storage may be enlarged by others at any time, so the views are taken anew
    _kept = property(lambda self: self._places.part(self._index, self._place), lambda self, value: None)  # pyright: ignore

    def _grow(self, key_states: Tensor, value_states: Tensor, span: Span) -> None:
        kept = self._places.reserve(self._index, key_states, value_states, span.stop)
        self._clean = kept[0].shape[2]

    def select(self, index: Tensor, moved: Any = None) -> None:
        raise ValueError("rows of a text at a place cannot be repeated or reordered")


class PlaceCache(LoopCache):
    """The cache of one text at a place."""

    def __init__(self, places: Places, place: int, exited: Exited = "last", limit: int | None = None) -> None:
        super().__init__(exited, limit)
        self.places, self.place = places, place
        places.limit = max(places.limit, 2**31 if limit is None else limit)

    def slot(self, index: int) -> Slot:
        while len(self.layers) <= index:
            self.layers.append(PlaceSlot(self.columns, self.places, len(self.layers), self.place))
        return self.layers[index]  # pyright: ignore[reportReturnType]


def seated(cache: LoopCache, places: Places, place: int) -> None:
    """Move what a cache of one text holds to a place; it goes on there."""
    for index in range(len(cache.layers)):
        old, new = cache.slot(index), PlaceSlot(cache.columns, places, index, place)
        if isinstance(old, PlaceSlot) and old._places is places:
            continue
        if old.keys is not None and old.values is not None:
            new.update(old.keys, old.values, Span(1, 0, old.keys.shape[2]))  # fewer at loops that later tokens did not run
        cache.layers[index] = new
    while len(cache.layers) < places.slots:
        cache.layers.append(PlaceSlot(cache.columns, places, len(cache.layers), place))
    places.limit = max(places.limit, 2**31 if cache.limit is None else cache.limit)


def unseated(cache: LoopCache) -> None:
    """Let a cache that was moved to a place go on by itself, with what it holds there."""
    with torch.inference_mode(False):  # what is kept is written later, maybe with gradients
        for index, old in enumerate(cache.layers):
            if isinstance(old, PlaceSlot):
                cache.layers[index] = new = Slot(cache.columns)
                new._kept, new._clean = old._kept, old.capacity


@dataclass(frozen=True, slots=True)
class Group:
    """Successive members of a `Together` that are one view of the storage."""

    start: int
    stop: int
    first: int  # number in the storage, at the loop that the group was made for
    stride: int
    columns: int  # that any of them sees

    def view(self, kept: Tensor, shift: int) -> Tensor:
        """[members, heads, columns, head_dim]"""
        first = self.first + shift
        last = first + (self.stop - self.start - 1) * self.stride
        return kept[first : last + 1 : self.stride, :, : self.columns]


class PassCache:
    """What a pass over several texts has for a cache: as the stages ask it, it knows nothing of what was before."""

    reach = valid = lengths = depths = None  # what one text's cache knows about its own columns
    span: Span | None = None  # of the tokens that are still in the loops
    ids: Tensor | None = None  # token ids [texts, time], where the model wants them kept: each text's own cache keeps them

    def open(self, batch: int, time: int, padding: Tensor | None = None, device: Any = None) -> Span:
        self.span = Span(batch, 0, time)
        return self.span

    def run(self, span: Span, loop: int) -> None:
        """Each text's own cache notes it."""

    def seen_at(self, loop: int) -> None:
        return None

    def remember(self, span: Span, input_ids: Tensor) -> None:
        self.ids = input_ids


class Together(PassCache):
    """What a pass over one token of each of several texts has for a cache.

    Members are given in the order of (loop, place), `loops` being those that they have run; the model is told that it runs the
    first loop, and the keys go to each member's own. Beside the loops (a prelude, a coda) all are alike. A text may have
    several members, at different columns.
    """

    def __init__(self, places: Places, at: Sequence[int], columns: Sequence[int], loops: Sequence[int], device: Any) -> None:
        self.places, self.columns = places, list(columns)
        self.shift = 0  # loops that were run since
        self.numbers = {
            True: [loop * places.rows + place for loop, place in zip(loops, at, strict=True)],
            False: list(at),
        }
        self.longest = max(self.columns) + 1
        self._first_loop = sum(loop == 0 for loop in loops)
        self._device = device
        self._at = {looped: sent(each, device) for looped, each in self.numbers.items()}
        self._written = sent(self.columns, device)
        self._groups: dict[bool, list[Group]] = {}
        self.unseen: Tensor | None = None  # [members, columns] bool, that tokens which left early hide at this loop
        self._mask: Tensor | None = None
        self._weights: dict[tuple[bool, torch.dtype], list[Tensor | None]] = {}

    def slot(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(attend=partial(self.attend, index))

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """For layers that attend by themselves, with the mask of the pass: a copy, unless all members are one view."""
        kept = self.write(layer_idx, key_states, value_states)
        looped = layer_idx in self.places.looped
        groups, shift = self.groups(looped), self._shift(looped)
        if len(groups) == 1:
            return groups[0].view(kept[0], shift), groups[0].view(kept[1], shift)
        at = self._at[looped]
        return kept[0][at, :, : self.longest], kept[1][at, :, : self.longest]

    # -- writing and attending ----------------------------------------------------------------------------------------

    @property
    def fresh(self) -> int:
        """How many members, the first ones, have not run any loop."""
        return 0 if self.shift else self._first_loop

    def ran(self) -> None:
        """All members have run one more loop."""
        self.shift += 1
        self._at[True] = self._at[True] + self.places.rows

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.places.reserve(index, keys, values, self.longest)
        looped = index in self.places.looped
        at: Any = self._at[looped]
        columns: Any = self._written
        if len(self.columns) == 1:  # by numbers it takes half as long
            own = self.numbers[looped][0] + self._shift(looped)
            at, columns = slice(own, own + 1), self.columns[0]
        for storage, new in zip(kept, (keys, values), strict=True):  # new: [members, heads, 1, head_dim]
            storage[at, :, columns] = new[:, :, 0]
        return kept

    def attend(self, index: int, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[members, 1, heads × head_dim]"""
        kept, looped = self.write(index, key, value), index in self.places.looped
        shift, made = self._shift(looped), []
        if self.places.implementation == "sdpa" and module.num_key_value_groups == 1:
            # there are many small calls: each without a detour, and with a mask that need not be made again
            for group, weights in zip(self.groups(looped), self.weights(looped, query.dtype), strict=True):
                asked, keys, values = query[group.start : group.stop], group.view(kept[0], shift), group.view(kept[1], shift)
                made.append(F.scaled_dot_product_attention(asked, keys, values, weights).flatten(1)[:, None])
        else:
            for group in self.groups(looped):
                asked, keys, values = query[group.start : group.stop], group.view(kept[0], shift), group.view(kept[1], shift)
                made.append(attention(module, asked, keys, values, self.mask_of(group, looped)))
        return made[0] if len(made) == 1 else torch.cat(made)

    def _shift(self, looped: bool) -> int:
        return self.shift * self.places.rows if looped else 0

    def groups(self, looped: bool) -> list[Group]:
        if looped not in self._groups:
            even = "flash" in self.places.implementation  # which takes no mask of one's own
            self._groups[looped] = _evenly_spaced(self.numbers[looped], self.columns, even)
        return self._groups[looped]

    def mask_of(self, group: Group, looped: bool) -> Tensor | None:
        """bool [members, 1, 1, columns] of what the group's members see; None: all columns of the group."""
        if self._sees_all(group, looped):
            return None
        mask = self.mask if looped else self._seen()
        return mask[group.start : group.stop, :, :, : group.columns]

    def _sees_all(self, group: Group, looped: bool) -> bool:
        alike = min(self.columns[group.start : group.stop]) + 1 == group.columns
        return alike and (self.unseen is None or not looped)

    def weights(self, looped: bool, dtype: torch.dtype) -> list[Tensor | None]:
        """As `mask_of`, of each group, as what is added to the scores: 0, or −∞."""
        if (looped, dtype) not in self._weights:
            groups, table = self.groups(looped), None
            if not all(self._sees_all(group, looped) for group in groups):
                if (self.unseen is None or not looped) and self.longest <= TRIANGLE:
                    table = triangle(in_blocks(self.longest), dtype, self._device).index_select(0, self._written)[:, None, None]
                else:
                    mask = self.mask if looped else self._seen()
                    table = torch.where(mask, mask.new_zeros((), dtype=dtype), -torch.inf)
            self._weights[looped, dtype] = [
                None
                if table is None or self._sees_all(group, looped)
                else table[group.start : group.stop, :, :, : group.columns]
                for group in groups
            ]
        return self._weights[looped, dtype]

    @property
    def mask(self) -> Tensor:
        """bool [members, 1, 1, longest] of what each member sees at its loop."""
        if self._mask is None:
            self._mask = self._seen() if self.unseen is None else self._seen() & ~self.unseen[:, None, None]
        return self._mask

    def hide(self, unseen: Tensor | None) -> None:
        """What is not seen at the loop that is run next."""
        self.unseen, self._mask = unseen, None
        self._weights = {}

    def _seen(self) -> Tensor:
        columns = torch.arange(self.longest, device=self._device)
        return (columns <= self._written[:, None])[:, None, None]


@lru_cache(maxsize=16)
def triangle(size: int, dtype: torch.dtype, device: Any) -> Tensor:
    """[size, size]: 0 up to the diagonal, −∞ behind it; what the token at a column adds to its scores."""
    return torch.full((size, size), -torch.inf, dtype=dtype, device=device).triu(1)


class Gathered:
    """Some texts' caches as tokens see them that are not kept there: beside the loops, copies of what is before them."""

    valid = None

    def __init__(self, places: Places, at: Sequence[int]) -> None:
        self.places, self.at = places, torch.tensor(at)

    def slot(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(before=partial(self.before, index))

    def before(self, index: int, stop: int, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """As a `Slot` has it."""
        at = self.at if rows is None else self.at[rows.cpu()]
        return self.places.rows_of(index, at, stop)


def _evenly_spaced(numbers: Sequence[int], columns: Sequence[int], even: bool) -> list[Group]:
    """Numbers cut into evenly spaced rising ones; with `even`, of the same number of columns."""
    groups, start = [], 0
    while start < len(numbers):
        stop = start + 1
        stride = numbers[stop] - numbers[start] if stop < len(numbers) else 1
        stride = stride if stride > 0 else 1  # of several tokens of one text, each is a view of its own
        while stop < len(numbers) and numbers[stop] - numbers[stop - 1] == stride:
            if even and columns[stop] != columns[start]:
                break
            stop += 1
        groups.append(Group(start, stop, numbers[start], stride, max(columns[start:stop]) + 1))
        start = stop
    return groups
