"""A model at work: tokens in, the expert's view of the next token out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from loopcd.decoding.exits import EarlyExit, run_loops
from loopcd.models.cache import LoopCache
from loopcd.models.stages import LoopedModel, LoopState, checked_loops, wide


@dataclass(frozen=True)
class Reading:
    """What the expert says about the next token of each row."""

    hidden: Tensor  # [batch × count, width], what the head reads
    logits: Tensor  # [batch × count, vocab], at least float32
    count: int = 1  # successive tokens of each row, where several were read at once
    going: Sequence[bool] | None = None  # rows whose texts have not ended, where some have; nobody reads the others

    @property
    def dtype(self) -> torch.dtype:
        """In which the head computed the logits."""
        kind = self.hidden.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.hidden.dtype


def not_finite() -> ValueError:
    return ValueError(
        "the model's logits hold numbers that are not finite, so no token can be chosen: its weights may be broken, "
        "or its dtype too narrow for them"
    )


def check_finite(logits: Tensor) -> None:
    """Waits for the device."""
    if not isfinite(float(logits.amax())):  # NaN is the highest of all
        raise not_finite()


class Reader:
    """A model at work on one batch of texts: the cache, and how many loops are run."""

    def __init__(
        self,
        model: LoopedModel,
        num_loops: int | None = None,
        exit: EarlyExit | None = None,
        init_seed: int | Sequence[int] | None = None,
        cache: LoopCache | None = None,
        limit: int | None = None,
        token_type_ids: Tensor | None = None,
    ) -> None:
        if exit is not None:
            exit.check(model)
        self.model, self.exit, self.init_seed = model, exit, init_seed
        self.token_type_ids = token_type_ids  # [batch, time] of the prompts, where a model reads them otherwise than text
        self.num_loops = checked_loops(num_loops, model.num_loops)
        if cache is None:  # an empty cache is falsy
            cache = model.new_cache("last" if exit is None else exit.exited, limit)
        self.cache = cache

    def as_before(self) -> "Reader":
        """What reads tokens that an earlier call left unread as that call would have."""
        loops, leave, seed = self.cache.behind_by
        return Reader(self.model, loops, leave, seed, self.cache)

    def begin(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> LoopState:
        """The state of these tokens [batch, time] before any loop."""
        prompt = {} if self.cache.length else self.model.prompt_options(input_ids, self.token_type_ids)
        return self.model.begin(input_ids, self.cache, attention_mask=attention_mask, init_seed=self.init_seed, **prompt)

    def read(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, watch: Callable[[LoopState], None] | None = None
    ) -> tuple[Reading, Tensor]:
        """Run these tokens [batch, time] through the loops; the expert's view of what comes next, and the loops [batch]."""
        state = self.begin(input_ids, attention_mask)
        state, ran = run_loops(self.model, state, self.num_loops, self.exit, watch)
        hidden = self.model.readout(state, last=True)[:, -1]
        return Reading(hidden, wide(self.model.head(hidden))), ran
