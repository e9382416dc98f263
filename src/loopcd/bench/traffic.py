"""What a token must read from memory, and how fast memory is: the limit of decoding with few rows.

A step of decoding multiplies every weight once for every loop that it is part of, and a weight is used once for each row.
With few rows the processor waits for the weights; so bytes over bandwidth is the least time that a step can take.
"""

from dataclasses import dataclass

import torch
from torch import nn

from loopcd.bench.timing import Sample, timed
from loopcd.models import HuginnForCausalLM, LoopedModel, cache_bytes
from loopcd.models.recurrent import RecurrentModel
from loopcd.models.stacked import StackedModel


@dataclass(frozen=True)
class Traffic:
    """Bytes that one decoding step reads at a context length."""

    once: int  # weights before the loops and of one embedding
    loop: int  # weights of one loop
    loops: int
    readout: int  # weights between the loops and the head
    head: int
    cache: int  # keys and values of one row

    @property
    def weights(self) -> int:
        """Of a whole step; the rows of a batch share them."""
        return self.once + self.loops * self.loop + self.readout + self.head

    def per_token(self, batch: int = 1) -> float:
        return self.weights / batch + self.cache


def step_traffic(model: LoopedModel, context: int, dtype: torch.dtype | None = None) -> Traffic:
    """Counted from the modules that a step runs, also of a model on the meta device; `dtype` if not the model's own."""
    size = (dtype or model.dtype).itemsize
    width = model.config.hidden_size
    if isinstance(model, RecurrentModel):
        counts = {name: _elements(part) for name, part in model.transformer.items()}
        once = counts["prelude"] + counts.get("ln_prelude", 0)
        loop = counts["adapter"] + counts["core_block"]
        norms = 2 if isinstance(model, HuginnForCausalLM) else 1
        readout = counts["coda"] + norms * counts["ln_f"] + counts.get("C", 0)
    elif isinstance(model, StackedModel):
        once, readout = 0, 0
        loop = _elements(model.model.layers) + _elements(model.model.norm)
    else:
        raise ValueError(f"{type(model).__name__}: bytes per token are counted for models built as Huginn and Ouro are")
    return Traffic(
        once=(once + width) * size,  # the token's row of the embedding
        loop=loop * size,
        loops=model.num_loops,
        readout=readout * size,
        head=model.lm_head.weight.numel() * size,
        cache=cache_bytes(model, context, dtype=dtype),
    )


def _elements(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


class Stream:
    """Matrix–vector products over matrices that together are far larger than any cache: what one thread can stream."""

    def __init__(self, megabytes: int = 512, side: int = 2048) -> None:
        count = max(1, megabytes * 10**6 // (side * side * 4))
        self.matrices = [torch.full((side, side), 0.5) for _ in range(count)]
        self.vector = torch.ones(side)

    def __call__(self) -> Sample:
        """Bytes read, and the time."""
        return timed(self._read)

    def _read(self) -> int:
        for matrix in self.matrices:
            torch.mv(matrix, self.vector)
        return sum(matrix.nbytes for matrix in self.matrices)
