"""A real browser for the page, a small model behind it, and pages to open."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from lens.viewing import MADE, open_page, paired_traces
from loopcd.evaluation.engine import LocalEngine
from loopcd.lens import examples_of, export
from random_models import one_thread
from tools import byte_tokenizer, tiny_huginn

__all__ = ["one_thread"]

NEEDED = "LOOPCD_NEEDS_BROWSER"  # set where these tests must not be left out


def chromium() -> str:
    """The path of a Chromium: the system's, else the one that playwright installed."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        found = shutil.which(name)
        # some distributions have a stub there that only says what to install
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else ""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = chromium()
    if not path:
        reason = "no Chromium: install the system's (chromium), or run `playwright install --with-deps chromium`"
        if os.environ.get(NEEDED):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # a browser that runs as root, as in CI's containers, has no sandbox
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def engine() -> LocalEngine:
    """A random model that speaks in bytes, and is often of two minds."""
    return LocalEngine(tiny_huginn(seed=3, mean_recurrence=6), byte_tokenizer(), "tiny-random")


@pytest.fixture(scope="session")
def exported(engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two examples, greedy and LoopCD side by side."""
    path = tmp_path_factory.mktemp("lens") / "report.html"
    examples, _ = examples_of(trace for prompt in MADE for trace in paired_traces(engine, prompt))
    export(path, examples, "made for tests")
    return path


@pytest.fixture
def page(browser: Any, exported: Path) -> Iterator[Any]:
    """The exported page, opened from disk."""
    with open_page(browser, exported.as_uri()) as opened:
        yield opened
