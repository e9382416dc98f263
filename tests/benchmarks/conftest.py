"""Tiny models as the tests of `loopcd bench` have them, and one tiny run with the parts of benchmarks/."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.conftest import folders, tiny
from benchmarks import parts, wave
from loopcd.bench.parts import PARTS, Settings, run
from loopcd.bench.tables import MAKERS

__all__ = ["folders", "tiny"]


@contextmanager
def registered() -> Iterator[None]:
    """For a while only: the tests of `loopcd bench` see its own parts."""
    before = dict(PARTS), dict(MAKERS)
    parts.register()
    try:
        yield
    finally:
        for registry, kept in zip((PARTS, MAKERS), before, strict=True):
            for name in registry.keys() - kept.keys():
                del registry[name]


@pytest.fixture(autouse=True)
def _further_parts() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(scope="session")
def found(folders: list[str]) -> dict[str, Any]:
    """Of one model, the deep one less deep; what runs differ in between models, the tests of `loopcd bench` see."""
    what = ("methods", "decode", "overhead", "worst", "wave", "foretold", "evaluation", "devices")
    with registered(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(wave, "LOOPS", 12)
        return run(Settings(what=what, models=folders[:1], batches=(1,), rounds=1, max_new_tokens=4, quick=True))
