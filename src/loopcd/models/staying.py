"""A pass under way that some of its rows have left."""

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from loopcd.models.layers import attention
from loopcd.models.slots import Slot

if TYPE_CHECKING:
    from loopcd.models.stages import Pass

MANY = 0.5  # of a pass's rows: where more stay, views of all rows cost less than copies of theirs


class Staying:
    """A cache as the rows see it that stay: one token of each attends on views of all rows, which costs less than copies."""

    def __init__(self, whole: "Pass", stay: "Pass") -> None:
        assert stay.span.rows is not None
        self.cache, self.mask, self.span, self.rows = whole.cache, whole.mask, stay.span, stay.span.rows

    @staticmethod
    def possible(whole: "Pass", stay: "Pass") -> bool:
        alike = whole.cache is not None and whole.cache.exited == "last"  # what is skipped is masked at every loop anew
        return alike and stay.span.time == 1 and len(stay.span.numbers()) > MANY * whole.span.batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """For layers of transformers' own, which attend by themselves: copies of the rows that stay."""
        assert self.cache is not None
        return self.cache.slot(layer_idx).update(key_states, value_states, self.span)

    def slot(self, index: int) -> SimpleNamespace:
        assert self.cache is not None
        slot = self.cache.slot(index)
        return SimpleNamespace(attend=partial(self.attend, slot), update=slot.update)

    def attend(self, slot: Slot, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[rows, 1, heads × head_dim]"""
        rows = self.rows.to(query.device)  # layers may be spread over devices
        mask = None if self.mask is None else self.mask.to(query.device)
        keys, values = slot.write(key, value, self.span)
        asked = query.new_zeros(self.span.batch, *query.shape[1:]).index_copy_(0, rows, query)
        return attention(module, asked, keys, values, mask).index_select(0, rows)
