"""Settings for all tests: no network, and examples that depend neither on the clock nor, in CI, on chance."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # numbers are compared with the CPU's; `load` would choose a GPU
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of huggingface_hub, which reads it once

settings.register_profile("loopcd", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("loopcd")


# `-m fast`: what is run after every change. Of each room what fails first when something is broken, a minute in all.
FAST = {
    ".": {"house"},
    "models": {"cache", "golden", "golden_families", "places", "readouts", "recognition", "refused"},
    "decoding": {"batch", "chat", "loopcd", "memory", "passes", "rules", "thinking"},
    "tracing": {"files", "record", "trace", "writing"},
    "evaluation": {"data", "graders", "paper", "plan", "report", "statistics", "table", "tasks"},
    "analysis": {"intervals", "scaling", "statistics"},
    "lens": {"page"},
    "serving": {"contrast", "memory", "options", "served"},
    "training": {"muon", "objectives", "rows", "tokenizer"},
    "bench": {"timing", "traffic"},
}
FAST_FILES = {Path(__file__).parent / room / f"test_{name}.py" for room, names in FAST.items() for name in names}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m fast` alone does not wait for the imports of all the other files."""
    other = collection_path.name.startswith("test_") and collection_path.suffix == ".py" and collection_path not in FAST_FILES
    return True if other and config.getoption("markexpr") == "fast" else None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path in FAST_FILES and item.get_closest_marker("slow") is None:
            item.add_marker("fast")


@pytest.fixture(scope="session", autouse=True)
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """What is written is synced, so that it survives a loss of power. No test can see that, and a busy disk takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def golden_huginn():
    from tools import Golden  # here, so that tests without a model do not wait for torch

    return Golden.read("huginn")


@pytest.fixture(scope="session")
def golden_ouro():
    from tools import Golden

    return Golden.read("ouro")


@pytest.fixture
def in_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts go on each at its own loop, also a few of a small model, which otherwise do so in step."""
    monkeypatch.setattr(importlib.import_module("loopcd.decoding.generate"), "SMALL", 0)
