"""Several prompts that are read in one pass, each into its own place.

They begin at column 0 and are padded on the right: no token sees what is behind it, so padding needs no mask, and what it
leaves behind a prompt is written over before anybody looks there.
"""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from loopcd.models.places import PassCache, Places
from loopcd.models.slots import Span


class Prompts(PassCache):
    """What such a pass has for a cache: all that its tokens see is in the pass itself, and is kept at the places."""

    length = 0

    def __init__(self, places: Places, at: Sequence[int], device: Any) -> None:
        self.places, self.at = places, torch.tensor(at, device=device)

    def slot(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(update=partial(self.write, index))

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.write(layer_idx, key_states, value_states, self.span)

    def write(self, index: int, key_states: Tensor, value_states: Tensor, span: Span | None) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, time, head_dim] from the first column on; they are also all that is seen."""
        at = self.at if span is None or span.rows is None else self.at[span.rows]
        self.places.keep(index, at, key_states, value_states)
        return key_states, value_states
