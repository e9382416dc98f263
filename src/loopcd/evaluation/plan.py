"""What is to be run: methods, seeds, and the batches in their fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from loopcd.evaluation.specs import MethodSpec


@dataclass(frozen=True)
class Run:
    """One method under one seed, over all items."""

    method: MethodSpec
    seed: int | None  # None: the zero initial state, and draws from seed 0

    @property
    def slug(self) -> str:
        return self.method.slug if self.seed is None else f"{self.method.slug}.seed{self.seed}"


@dataclass(frozen=True)
class RunPlan:
    methods: tuple[MethodSpec, ...]
    seeds: tuple[int, ...] | None = None
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("--methods: at least one method")
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0):
            raise ValueError(f"--seeds {','.join(map(str, self.seeds))}: different whole numbers of at least 0")
        if not isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"--temperature {self.temperature}: a number of at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p {self.top_p}: above 0, and at most 1")
        if self.top_p < 1 and not self.temperature:
            raise ValueError(f"--top-p {self.top_p}: at --temperature 0 nothing is drawn")
        if self.temperature and any(spec.name == "selfeval" for spec in self.methods):
            raise ValueError(
                f"--temperature {self.temperature}: selfeval draws its candidates itself, by selfeval:temperature=0.7,top_p=0.9"
            )

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(Run(method, seed) for method in self.methods for seed in self.seeds or (None,))

    def runs_of(self, method: MethodSpec) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.method == method)


def parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--seeds {text!r}: whole numbers with commas between them, as in 0,1,2,3") from error


def batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Items by length, the longest first: what does not fit into memory shows at once, and the time left is not too low."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return [order[start : start + size] for start in range(0, len(order), size)]
