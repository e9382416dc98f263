"""What is to be expected of a GPU, worked out on paper from the bytes that a token moves."""

from dataclasses import dataclass

import torch

from loopcd.bench.traffic import Traffic, step_traffic
from loopcd.decoding.draft import LONGEST, DraftPlan
from loopcd.models import LoopedModel
from loopcd.models.presets import PUBLIC, empty_model

PUBLISHED = {"Huginn-0125": "tomg-group-umd/huginn-0125", "Ouro-1.4B": "ByteDance/Ouro-1.4B"}
GPUS = {"A100 80 GB": 2.0e12, "H100 SXM": 3.35e12}  # bytes per second, by the makers' data sheets
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
CONTEXT = 2048


@dataclass(frozen=True)
class Expected:
    """The length with the highest gain, if that many loops draft and a draft is accepted with that probability."""

    loops: int
    acceptance: float
    length: int
    gain: float
    wave: float  # of a wave instead of rounds


@dataclass(frozen=True)
class Outlook:
    """A published model in bfloat16 at batch 1."""

    traffic: Traffic
    limits: dict[str, float]  # tokens per second by GPU, if nothing but memory took time
    coda: float  # what an eager amateur's readout would add to a step, as a share of its bytes
    expected: tuple[Expected, ...]

    def by_loops(self) -> dict[int, list[Expected]]:
        """What is expected by how many loops draft, by rising acceptance."""
        found: dict[int, list[Expected]] = {}
        for each in self.expected:
            found.setdefault(each.loops, []).append(each)
        return found


def outlooks(context: int = CONTEXT) -> dict[str, Outlook]:
    return {name: outlook(empty_model(PUBLIC[public]()), context) for name, public in PUBLISHED.items()}


def outlook(model: LoopedModel, context: int) -> Outlook:
    traffic = step_traffic(model, context, torch.bfloat16)
    moved, loops = traffic.per_token(), model.num_loops
    drafting = sorted({max(1, loops // part) for part in (8, 4, 2)})
    return Outlook(
        traffic,
        {gpu: bandwidth / moved for gpu, bandwidth in GPUS.items()},
        traffic.readout / moved,
        tuple(expected(model, early, chance) for early in drafting for chance in ACCEPTANCES),
    )


def expected(model: LoopedModel, loops: int, acceptance: float) -> Expected:
    gains = {length: DraftPlan(loops, length).gain(model, model.num_loops, acceptance) for length in range(2, LONGEST + 1)}
    best = max(gains, key=lambda length: gains[length])
    wave = DraftPlan.wave_of(loops, model.num_loops).gain(model, model.num_loops, acceptance)
    return Expected(loops, acceptance, best, gains[best], wave)


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's: how many items, about how long a prompt is in tokens, and how long an answer may be."""

    items: int
    prompt: int
    longest: int


BENCHMARKS = {
    "gsm8k": Benchmark(1319, 300, 256),
    "math500": Benchmark(500, 620, 512),
    "humaneval": Benchmark(164, 230, 512),
    "mbpp": Benchmark(378, 160, 1024),
    "strategyqa": Benchmark(2290, 400, 256),
}


def decode_hours(model: LoopedModel, benchmark: Benchmark, batch: int, bandwidth: float) -> float:
    """Hours of one method on all items if every answer is as long as it may be, and nothing but memory took time."""
    moved = step_traffic(model, benchmark.prompt + benchmark.longest // 2, torch.bfloat16).per_token(batch)
    return benchmark.items * benchmark.longest * moved / bandwidth / 3600


def row_bytes(model: LoopedModel, benchmark: Benchmark) -> int:
    """Keys and values of the longest row of a batch."""
    return step_traffic(model, benchmark.prompt + benchmark.longest, torch.bfloat16).cache
