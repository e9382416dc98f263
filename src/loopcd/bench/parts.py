"""A whole run of the benchmark: which parts, how much of each, and one dictionary that holds what was found."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from loopcd.bench.compiled import bench_compiled
from loopcd.bench.decode import bench_decode
from loopcd.bench.devices import bench_devices
from loopcd.bench.exact import bench_exact
from loopcd.bench.full_size import bench_full_size
from loopcd.bench.jobs import Subject
from loopcd.bench.memory import LARGE, SMALL, bench_load, bench_memory
from loopcd.bench.methods import bench_methods
from loopcd.bench.overhead import bench_overhead
from loopcd.bench.reference import bench_reference, checked_reference
from loopcd.bench.subjects import MEDIUM
from loopcd.bench.worst import bench_worst
from loopcd.models import LoopedModel
from loopcd.models.loading import built_in, load

PARTS = ("methods", "exact", "decode", "overhead", "worst", "devices", "compile", "memory", "load")
QUICK = ("methods", "decode", "load")
ON_REQUEST = ("vllm", "reference", "full-size")  # need environments of their own, or much time and memory


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

    def __post_init__(self) -> None:
        unknown = sorted(set(self.parts) - {*PARTS, *ON_REQUEST})
        if unknown or not self.parts:
            raise ValueError(f"what={','.join(unknown) or 'nothing'}: some of {', '.join([*PARTS, *ON_REQUEST])}")
        if "reference" in self.parts:
            checked_reference(self.reference)
        if not self.batches or any(batch < 1 for batch in self.batches):
            raise ValueError(f"batch={','.join(map(str, self.batches))}: whole numbers of at least 1")
        for name, least in (("rounds", 1), ("max_new_tokens", 4)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: a whole number of at least {least}")

    @property
    def parts(self) -> Sequence[str]:
        return self.what if self.what is not None else QUICK if self.quick else PARTS

    @property
    def hurried(self) -> bool:
        """Whether rounds stop when their time is over; rounds that were asked for are all run."""
        return self.quick and self.rounds is None

    def of(self, quick: int, full: int, given: int | None = None) -> int:
        return given if given is not None else quick if self.quick else full


def run(settings: Settings, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run the parts; `say` is told what is under way. `ratios` and `models` have the fixed form that checks read."""
    start = time.perf_counter()
    found: dict[str, Any] = {"ratios": {}, "models": {}, "machine": machine(), "quick": settings.quick}
    with one_thread():
        for part in settings.parts:
            began = time.perf_counter()
            told = _PARTS[part](settings, say)
            found |= told if part == "methods" else {part: told}
            found.setdefault("seconds", {})[part] = time.perf_counter() - began
    found["seconds"]["all"] = time.perf_counter() - start
    return found


def merged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Runs of different parts as one; of a part that several have, the last."""
    found: dict[str, Any] = {}
    for each in runs:
        seconds = {**found.get("seconds", {}), **each.get("seconds", {})}
        found |= {name: value for name, value in each.items() if value or name not in found}
        found["seconds"] = {**seconds, "all": sum(taken for part, taken in seconds.items() if part != "all")}
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """What is compared must not depend on how many cores happen to be free."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": 1,
    }


def _names(settings: Settings) -> list[str]:
    """The models to measure; `tiny-early`, which was not trained on the prompts, only where it is asked for."""
    return [name for name in built_in() if name != "tiny-early"] if settings.models is None else list(settings.models)


def _subjects(settings: Settings, say: Callable[[str], None]) -> list[Subject]:
    tokens = settings.of(24, 96, settings.max_new_tokens)
    names = _names(settings)
    if not names:
        say("there are no built-in models yet: medium ones with random weights instead, on random prompts")
        return [Subject(name, make(), None, tokens) for name, make in MEDIUM.items()]
    if len(set(names)) < len(names):
        raise ValueError(f"models={','.join(names)}: each model once")
    return [Subject(name, *load(name), tokens) for name in names]


def _methods(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    subjects = _subjects(settings, say)
    prompts, rounds = settings.of(2, 16), settings.of(9, 9, settings.rounds)
    seconds = 20 / (len(subjects) * len(settings.batches)) if settings.hurried else None
    return bench_methods(subjects, settings.batches, prompts, rounds, say, seconds)


def _exact(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    return bench_exact(_subjects(settings, say), settings.batches, settings.of(8, 200), say)


def _decode(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    contexts = (64, 256) if settings.quick else (64, 256, 1024)
    batches = settings.batches[:1] if settings.quick else settings.batches
    seconds = 3 if settings.hurried else None
    return bench_decode(contexts, batches, settings.of(5, 9, settings.rounds), settings.of(2, 8), say, seconds)


def _overhead(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    vocabularies = (4096,) if settings.quick else (4096, 65536)
    return bench_overhead(vocabularies, settings.of(1, 7, settings.rounds), settings.of(5, 24, settings.max_new_tokens), say)


def _worst(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    rounds, tokens = settings.of(1, 3, settings.rounds), settings.of(48, 96, settings.max_new_tokens)
    return bench_worst(settings.batches, rounds, tokens, say, settings.quick)


def _devices(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    return bench_devices(_loaded(settings), settings.of(2, 9, settings.rounds), settings.of(3, 8), say)


def _compile(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    rounds, steps = settings.of(2, 9, settings.rounds), settings.of(3, 8)
    return bench_compiled(_loaded(settings), settings.batches, rounds, steps, say)


def _loaded(settings: Settings) -> dict[str, LoopedModel]:
    """The models that were asked for, and in a full run the medium ones."""
    models = {name: make() for name, make in MEDIUM.items()} if not settings.quick else {}
    return models | {name: load(name)[0] for name in _names(settings)}


def _memory(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    names = _names(settings)
    tokens, contexts = settings.of(32, 96, settings.max_new_tokens), (0,) if settings.quick else (0, 1000)
    return bench_memory(names, settings.batches, tokens, say, contexts)


def _load(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    return bench_load(SMALL if settings.quick else LARGE, say)


def _vllm(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    from loopcd.bench.vllm import bench_vllm

    names = _names(settings)
    rounds, tokens = settings.of(3, 15, settings.rounds), settings.of(32, 96, settings.max_new_tokens)
    return bench_vllm(names, max(settings.batches), rounds, tokens, settings.quick, say)


def _reference(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    contexts = (64, 256) if settings.quick else (64, 256, 1024)
    rounds, tokens = settings.of(2, 7, settings.rounds), settings.of(8, 24, settings.max_new_tokens)
    return bench_reference(settings.reference, contexts, rounds, tokens, say)


def _full_size(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    return bench_full_size(settings.of(1, 5, settings.rounds), settings.of(1, 2), say)


_PARTS: dict[str, Callable[[Settings, Callable[[str], None]], dict[str, Any]]] = {
    "methods": _methods,
    "exact": _exact,
    "decode": _decode,
    "overhead": _overhead,
    "worst": _worst,
    "devices": _devices,
    "compile": _compile,
    "memory": _memory,
    "load": _load,
    "vllm": _vllm,
    "reference": _reference,
    "full-size": _full_size,
}
