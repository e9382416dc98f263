"""A trace that grows token by token, for a text that is still being written."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopcd.decoding.rules import relative_change
from loopcd.models import LoopedModel
from loopcd.models.stages import Coda
from loopcd.tracing.measure import TraceSetting
from loopcd.tracing.record import Written, assembled
from loopcd.tracing.trace import LoopTrace


class LiveTracer:
    """Reads a text along with whoever writes it, on a cache of its own, and says of each token what the loops said.

    The numbers are those of `trace_texts` on the same text, within float rounding.
    """

    def __init__(
        self,
        model: LoopedModel,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        *,
        amateur_loop: int | None = None,
        strength: float | None = None,
        plausibility: float = 0.1,
        top: int = 6,
        num_loops: int | None = None,
        init_seed: int | None = None,
        method: str = "greedy",
        coda: Coda = "shared",
    ) -> None:
        if not len(prompt_ids):
            raise ValueError("prompt_ids is empty: at least one token")
        self.model, self.tokenizer, self.prompt_ids = model, tokenizer, list(map(int, prompt_ids))
        self.setting = TraceSetting.of(model, num_loops, amateur_loop, strength, plausibility, top, coda)
        self.init_seed, self.method = init_seed, method
        self.cache = model.new_cache()
        self.token_ids: list[int] = []
        self.loops: list[int] = []
        self._readouts: list[list[Tensor]] = [[] for _ in range(self.setting.num_loops)]  # of each loop: [1, width] a token
        self._changes: list[list[Tensor]] = [[] for _ in range(self.setting.num_loops)]  # of each loop: [1] a token
        self._unread = self.prompt_ids

    def add(self, token_id: int, loops: int | None = None) -> LoopTrace:
        """What the loops said about this token, which comes next: a trace of one token. `loops` were run to choose it."""
        last, tokens = self.setting.num_loops, self.model.config.vocab_size
        loops = last if loops is None else loops
        if not 1 <= loops <= last:
            raise ValueError(f"loops={loops}: from 1 to {last}, the loops that are run")
        if not 0 <= token_id < tokens:
            raise ValueError(f"token_id={token_id}: the vocabulary has ids 0 to {tokens - 1}")
        self._read()
        self.token_ids.append(int(token_id))
        self.loops.append(int(loops))
        self._unread = [int(token_id)]
        return self._trace(slice(len(self.token_ids) - 1, None))

    def trace(self) -> LoopTrace:
        """The whole text so far."""
        if not self.token_ids:
            raise ValueError("nothing was added yet: a trace needs at least one token")
        return self._trace(slice(None))

    @torch.no_grad()
    def _read(self) -> None:
        """Run what has not been read, and keep what is said of the token after it."""
        ids = torch.tensor([self._unread], device=self.model.device)
        seed = {} if self.init_seed is None else {"init_seed": self.init_seed}
        prompt = {} if self.cache.length else self.model.prompt_options(ids)
        state = self.model.begin(ids, self.cache, **seed, **prompt)
        parked = []
        for loop in range(self.setting.num_loops):
            before, state = state, self.model.advance(state)
            self._changes[loop].append(relative_change(before.hidden[:, -1].float(), state.hidden[:, -1].float()))
            if state.loop < self.setting.num_loops:
                parked.append(self.model.park(state, self.setting.coda))
        hidden = [self.model.read_parked(each)[:, -1] for each in parked] + [self.model.readout(state, last=True)[:, -1]]
        for kept, each in zip(self._readouts, hidden, strict=True):
            kept.append(each)

    def _trace(self, tokens: slice) -> LoopTrace:
        item = Written(self.prompt_ids, self.token_ids[tokens], None, self.loops[tokens], self.init_seed, self.method)
        readouts = [torch.cat(each[tokens]) for each in self._readouts]
        changes = [torch.cat(each[tokens]) for each in self._changes]
        return assembled(self.model, self.tokenizer, item, self.prompt_ids, self.setting, readouts, changes)
