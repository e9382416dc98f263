"""A whole run of the benchmark: which parts, how much of each, and one dictionary that holds what was found."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers

from loopcd.bench.decode import bench_decode
from loopcd.bench.exact import bench_exact
from loopcd.bench.full_size import bench_full_size
from loopcd.bench.reference import bench_reference, checked_reference
from loopcd.bench.speeds import bench_methods
from loopcd.bench.subjects import MEDIUM, Subject
from loopcd.bench.timing import Say
from loopcd.evaluation.engine import using_threads
from loopcd.models.loading import load
from loopcd.models.names import built_in


@dataclass(frozen=True)
class Settings:
    """What is run. Numbers that are None follow from `quick`."""

    what: Sequence[str] | None = None  # None: all parts, or the quick ones
    models: Sequence[str] | None = None  # None: the built-in ones, or random medium ones where there are none
    batches: Sequence[int] = (1, 8)
    rounds: int | None = None
    max_new_tokens: int | None = None
    quick: bool = False
    reference: str | None = None  # PYTHON,FOLDER: an interpreter and the public code, for the part of that name
    dtype: str | None = None  # of the models that are named; None: as each is kept

    def __post_init__(self) -> None:
        unknown = sorted(set(self.parts) - set(PARTS))
        if unknown or not self.parts:
            raise ValueError(f"what={','.join(unknown) or 'nothing'}: some of {', '.join(PARTS)}")
        if "reference" in self.parts:
            checked_reference(self.reference)
        elif self.reference is not None:
            raise ValueError(f"reference={self.reference}: for the part of that name, by --what reference")
        if not self.batches or any(batch < 1 for batch in self.batches):
            raise ValueError(f"batch={','.join(map(str, self.batches))}: whole numbers of at least 1")
        for name, least in (("rounds", 1), ("max_new_tokens", 4)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: a whole number of at least {least}")

    @property
    def parts(self) -> Sequence[str]:
        runs = ("quick",) if self.quick else ("quick", "full")
        return self.what if self.what is not None else [name for name, part in PARTS.items() if part.runs in runs]

    @property
    def hurried(self) -> bool:
        """Whether rounds stop when their time is over; rounds that were asked for are all run."""
        return self.quick and self.rounds is None

    def of(self, quick: int, full: int, given: int | None = None) -> int:
        return given if given is not None else quick if self.quick else full


def run(settings: Settings, say: Say = lambda _: None) -> dict[str, Any]:
    """Run the parts; `say` is told what is under way. `ratios` and `models` have the fixed form that checks read."""
    start = time.perf_counter()
    found: dict[str, Any] = {"ratios": {}, "models": {}, "machine": machine(), "quick": settings.quick}
    with using_threads(1):  # what is compared must not depend on how many cores happen to be free
        for part in settings.parts:
            began = time.perf_counter()
            told = PARTS[part].measure(settings, say)
            found |= told if part == "methods" else {part: told}
            found.setdefault("seconds", {})[part] = time.perf_counter() - began
    found["seconds"]["all"] = time.perf_counter() - start
    return found


def merged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Runs of different parts as one; of a part that several have the last, but comparisons by model."""
    found: dict[str, Any] = {}
    for each in runs:
        seconds = {**found.get("seconds", {}), **each.get("seconds", {})}
        compared = {part: {**found.get(part, {}), **each.get(part, {})} for part in ("exact", "reference")}
        found |= {name: value for name, value in each.items() if value or name not in found}
        found |= {part: told for part, told in compared.items() if told}
        found["seconds"] = {**seconds, "all": sum(taken for part, taken in seconds.items() if part != "all")}
    return found


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": 1,
    }


def names(settings: Settings) -> list[str]:
    """The models to measure; `tiny-early`, which was not trained on the prompts, only where it is asked for."""
    return [name for name in built_in() if name != "tiny-early"] if settings.models is None else list(settings.models)


def _subjects(settings: Settings, say: Say) -> list[Subject]:
    tokens = settings.of(24, 96, settings.max_new_tokens)
    chosen = names(settings)
    if not chosen:
        say("there are no built-in models yet: medium ones with random weights instead, on random prompts")
        return [Subject(name, make(), None, tokens) for name, make in MEDIUM.items()]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"models={','.join(chosen)}: each model once")
    called = {name: name if settings.dtype is None else f"{name} ({settings.dtype})" for name in chosen}
    return [Subject(called[name], *load(name, dtype=settings.dtype), tokens) for name in chosen]


def _methods(settings: Settings, say: Say) -> dict[str, Any]:
    subjects = _subjects(settings, say)
    prompts, rounds = settings.of(2, 16), settings.of(9, 9, settings.rounds)
    seconds = 20 / (len(subjects) * len(settings.batches)) if settings.hurried else None
    return bench_methods(subjects, settings.batches, prompts, rounds, say, seconds)


def _exact(settings: Settings, say: Say) -> dict[str, Any]:
    return bench_exact(_subjects(settings, say), settings.batches, settings.of(8, 200), say)


def _decode(settings: Settings, say: Say) -> dict[str, Any]:
    contexts = (64, 256) if settings.quick else (64, 256, 1024)
    batches = settings.batches[:1] if settings.quick else settings.batches
    seconds = 3 if settings.hurried else None
    return bench_decode(contexts, batches, settings.of(5, 9, settings.rounds), settings.of(2, 8), say, seconds)


def _vllm(settings: Settings, say: Say) -> dict[str, Any]:
    from loopcd.bench.vllm import bench_vllm

    rounds, tokens = settings.of(3, 15, settings.rounds), settings.of(32, 96, settings.max_new_tokens)
    return bench_vllm(names(settings), max(settings.batches), rounds, tokens, settings.quick, say)


def _reference(settings: Settings, say: Say) -> dict[str, Any]:
    contexts = (64, 256) if settings.quick else (64, 256, 1024)
    rounds, tokens = settings.of(2, 7, settings.rounds), settings.of(8, 24, settings.max_new_tokens)
    return bench_reference(settings.reference, contexts, rounds, tokens, say, settings.models)


def _full_size(settings: Settings, say: Say) -> dict[str, Any]:
    return bench_full_size(settings.of(1, 5, settings.rounds), settings.of(1, 2), say, settings.models)


@dataclass(frozen=True)
class Part:
    """How it is measured, and in which runs: quick ones too, full ones, or only where it is `asked` for by name."""

    measure: Callable[[Settings, Say], dict[str, Any]]
    runs: Literal["quick", "full", "asked"] = "full"


PARTS = {  # benchmarks/ adds its own
    "methods": Part(_methods, "quick"),
    "exact": Part(_exact),
    "decode": Part(_decode, "quick"),
    "vllm": Part(_vllm, "asked"),  # these need environments of their own, or much time and memory
    "reference": Part(_reference, "asked"),
    "full-size": Part(_full_size, "asked"),
}
