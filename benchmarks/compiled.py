"""What compiling a model's layers brings on this machine, and what it costs to begin with."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

from loopcd.bench.decode import FilledCache
from loopcd.bench.timing import Stopwatch, alternately, ratio
from loopcd.models import LoopedModel

CONTEXT = 128


def measure_compiled(model: LoopedModel, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    """Compiled over plain decoding, and how much longer the first passes took: a prompt's and some tokens'."""
    torch.compiler.reset()  # what other models left compiled would spare this one its start-up
    compiled = deepcopy(model)
    compiled.compile_loops()
    cells, watches = [], []
    for each in (model, compiled):
        watch = Stopwatch()
        with watch.running():
            cell = FilledCache(each, CONTEXT, batch, steps)
            cell.decode()
        cells.append(cell)
        watches.append(watch)
    samples = alternately({"plain": cells[0].decode, "compiled": cells[1].decode}, rounds)
    return {
        "start_up_seconds": watches[1].wall - watches[0].wall,
        "compiled/plain": asdict(ratio(samples["compiled"], samples["plain"])),
    }


def bench_compiled(
    models: Mapping[str, LoopedModel], batches: Sequence[int], rounds: int, steps: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """By model and batch; where nothing can be compiled, the reason."""
    found: dict[str, Any] = {}
    for name, model in models.items():
        for batch in batches:
            say(f"compile: {name}, batch {batch}")
            try:
                told = measure_compiled(model, batch, rounds, steps)
            except (TorchDynamoException, ValueError) as error:  # no compiler on this machine, or no layers for it
                told = {"failed": str(error).strip().splitlines()[0]}
            found.setdefault(name, {})[str(batch)] = told
    return found
