"""Where the time of a decoding step goes, and what each device of the decoding costs, in units of such a step."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from loopcd.bench.decode import FilledCache
from loopcd.bench.subjects import random_ids
from loopcd.bench.timing import Sample, Stopwatch, alternately, rates, ratio
from loopcd.models import LoopedModel

STAGES = ("begin", "loops", "readout", "head")
KINDS = {  # operators by what they do; whatever is not named here is "other"
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::mv", "aten::linear", "aten::matmul", "mkldnn"),
    "attention": ("scaled_dot_product", "aten::_softmax"),
    "norms": ("linalg_vector_norm", "aten::rsqrt", "aten::rms_norm", "aten::addcmul"),
    "cache": ("aten::copy_", "aten::index_put_", "aten::slice", "aten::select"),
}


@dataclass
class Bench:
    """A model with a filled cache, and the single devices as tasks."""

    model: LoopedModel
    cell: FilledCache
    repeats: int

    def stages(self) -> dict[str, Stopwatch]:
        """The four stages of some steps, each with its own watch."""
        watches = {name: Stopwatch() for name in STAGES}
        model, cell = self.model, self.cell
        with torch.no_grad():
            for _ in range(self.repeats):
                with watches["begin"].running():
                    state = model.begin(cell.token, cell.cache)
                with watches["loops"].running():
                    for _ in range(model.num_loops):
                        state = model.advance(state)
                with watches["readout"].running():
                    hidden = model.readout(state)
                with watches["head"].running():
                    model.head(hidden)
        cell.cache.crop(-self.repeats)
        return watches

    @torch.no_grad()
    def together(self, count: int) -> Sample:
        """One loop over `count` successive tokens at once, as in a verification."""
        watch = Stopwatch()
        ids = random_ids(self.model, 1, count, seed=3)
        for _ in range(self.repeats):
            state = self.model.begin(ids, self.cell.cache)
            with watch.running():
                self.model.advance(state)
            self.cell.cache.crop(-count)
        return watch.sample(self.repeats)

    @torch.no_grad()
    def read_out(self, count: int) -> Sample:
        """The readout of `count` successive tokens at once, as when deferred ones are caught up."""
        watch = Stopwatch()
        for _ in range(self.repeats):
            state = self.model.advance(self.model.begin(random_ids(self.model, 1, count, seed=3), self.cell.cache))
            with watch.running():
                self.model.readout(state)
            self.cell.cache.crop(-count)
        return watch.sample(self.repeats)

    @torch.no_grad()
    def head(self, tokens: int | None) -> Sample:
        """The head, on the whole vocabulary or on some of its rows."""
        hidden = torch.randn(1, self.model.config.hidden_size).to(self.model.device, self.model.dtype)
        rows = None if tokens is None else random_ids(self.model, 1, tokens, seed=4)
        watch = Stopwatch()
        with watch.running():
            for _ in range(self.repeats):
                self.model.head(hidden, rows)
        return watch.sample(self.repeats)


def measure_devices(model: LoopedModel, rounds: int, repeats: int, context: int = 128) -> dict[str, Any]:
    """Each device's time over that of a whole step, both measured alternately."""
    cell = FilledCache(model, context, 1, repeats)
    bench = Bench(model, cell, repeats)
    tasks: Mapping[str, Callable[[], Sample]] = {
        "step": cell.decode,
        **{f"loop over {count}": lambda count=count: bench.together(count) for count in (1, 2, 4, 8)},
        **{f"readout of {count}": lambda count=count: bench.read_out(count) for count in (1, 8)},
        "head": lambda: bench.head(None),
        "head, 5 rows": lambda: bench.head(5),
    }
    samples = alternately(tasks, rounds)
    costs = {name: asdict(ratio(samples["step"], samples[name])) for name in tasks if name != "step"}
    watches = bench.stages()
    whole = sum(watch.wall for watch in watches.values())
    return {
        "step_seconds": 1 / rates(samples["step"]).median,
        "cost": costs,
        "stages": {name: watch.wall / whole for name, watch in watches.items()},
        "operators": operators(cell),
    }


def operators(cell: FilledCache) -> dict[str, Any]:
    """Shares of the operators' own time by kind, and how many operators a step calls, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        cell.decode()
    spent: dict[str, float] = dict.fromkeys([*KINDS, "other"], 0.0)
    calls = 0
    for event in seen.key_averages():
        if not event.key.startswith("aten::"):
            continue
        kind = next((kind for kind, names in KINDS.items() if any(name in event.key for name in names)), "other")
        spent[kind] += event.self_cpu_time_total
        calls += event.count
    whole = sum(spent.values()) or 1.0
    return {"calls_per_step": calls / cell.steps, "share": {kind: time / whole for kind, time in spent.items()}}


def bench_devices(models: Mapping[str, LoopedModel], rounds: int, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    found = {}
    for name, model in models.items():
        say(f"devices: {name}")
        found[name] = measure_devices(model, rounds, repeats)
    return found
