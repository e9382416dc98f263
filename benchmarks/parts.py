"""The parts of this folder, and how much of each a run measures."""

from typing import Any

from benchmarks import tables
from benchmarks.compiled import bench_compiled
from benchmarks.devices import bench_devices
from benchmarks.evaluation import bench_evaluation
from benchmarks.foretold import bench_foretold
from benchmarks.memory import LARGE, SMALL, bench_load, bench_memory
from benchmarks.overhead import bench_overhead
from benchmarks.wave import bench_wave
from benchmarks.worst import bench_worst
from loopcd.bench.parts import PARTS, Part, Settings, names
from loopcd.bench.subjects import MEDIUM
from loopcd.bench.tables import MAKERS
from loopcd.bench.timing import Say
from loopcd.models import LoopedModel
from loopcd.models.loading import load


def _overhead(settings: Settings, say: Say) -> dict[str, Any]:
    vocabularies = (4096,) if settings.quick else (4096, 65536)
    batches = settings.batches[:1] if settings.quick else settings.batches
    rounds, tokens = settings.of(1, 7, settings.rounds), settings.of(5, 24, settings.max_new_tokens)
    return bench_overhead(dict.fromkeys(names(settings), batches), vocabularies, rounds, tokens, say)


def _worst(settings: Settings, say: Say) -> dict[str, Any]:
    rounds, tokens = settings.of(1, 3, settings.rounds), settings.of(48, 96, settings.max_new_tokens)
    return bench_worst(settings.batches, rounds, tokens, say, settings.quick)


def _wave(settings: Settings, say: Say) -> dict[str, Any]:
    rounds, tokens = settings.of(1, 5, settings.rounds), settings.of(32, 64, settings.max_new_tokens)
    return bench_wave(rounds, tokens, say, settings.quick)


def _foretold(settings: Settings, say: Say) -> dict[str, Any]:
    rounds, tokens = settings.of(1, 7, settings.rounds), settings.of(12, 64, settings.max_new_tokens)
    return bench_foretold((0.8,) if settings.quick else (0.6, 0.8, 0.9), rounds, tokens, say, settings.quick)


def _evaluation(settings: Settings, say: Say) -> dict[str, Any]:
    model = settings.models[0] if settings.models else "tiny-huginn"
    batches, rounds = (2, 4) if settings.quick else (8, 64), settings.of(1, 3, settings.rounds)
    return bench_evaluation(model, settings.of(12, 512), batches, rounds, say, settings.quick)


def _devices(settings: Settings, say: Say) -> dict[str, Any]:
    return bench_devices(_loaded(settings), settings.of(2, 9, settings.rounds), settings.of(3, 8), say)


def _compile(settings: Settings, say: Say) -> dict[str, Any]:
    rounds, steps = settings.of(2, 9, settings.rounds), settings.of(3, 8)
    return bench_compiled(_loaded(settings), settings.batches, rounds, steps, say)


def _loaded(settings: Settings) -> dict[str, LoopedModel]:
    """The models that were asked for, and in a full run the medium ones."""
    models = {name: make() for name, make in MEDIUM.items()} if not settings.quick else {}
    return models | {name: load(name)[0] for name in names(settings)}


def _memory(settings: Settings, say: Say) -> dict[str, Any]:
    tokens, contexts = settings.of(32, 96, settings.max_new_tokens), (0,) if settings.quick else (0, 1000)
    return bench_memory(names(settings), settings.batches, tokens, say, contexts)


def _load(settings: Settings, say: Say) -> dict[str, Any]:
    return bench_load(SMALL if settings.quick else LARGE, say)


def register() -> None:
    """Let runs have these parts too."""
    for name, (measure, make) in _PARTS.items():
        PARTS[name] = Part(measure, "quick" if name == "load" else "full")
        MAKERS[name] = make


_PARTS = {  # what measures each, and what makes its tables
    "overhead": (_overhead, tables.overhead_tables),
    "worst": (_worst, tables.worst_tables),
    "wave": (_wave, tables.wave_tables),
    "foretold": (_foretold, tables.foretold_tables),
    "evaluation": (_evaluation, tables.evaluation_tables),
    "devices": (_devices, tables.device_tables),
    "compile": (_compile, tables.compile_tables),
    "memory": (_memory, tables.memory_tables),
    "load": (_load, tables.load_tables),
}
