"""Progress on standard error: a bar where somebody looks on, a line now and then where not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from loopcd.evaluation.report import described
from loopcd.evaluation.runner import Progress as State

EVERY = 15.0  # seconds between lines where there is no terminal


@contextmanager
def showing_progress(what: str) -> Iterator[Callable[[State], None]]:
    if not sys.stderr.isatty():
        yield _lines(what)
        return
    left = TextColumn("{task.fields[left]}")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, left="")

        def report(state: State) -> None:
            bar.update(task, completed=state.done, total=state.total, left=f"{state.done}/{state.total} {time_left(state)}")

        yield report


def announced(manifest: dict[str, Any]) -> None:
    """What is about to be run."""
    console = Console(stderr=True, width=200, highlight=False)
    for line in described(manifest):
        console.print(line, markup=False, soft_wrap=True)


def time_left(state: State) -> str:
    """From what this process has done itself; items that were there already took it no time."""
    made = state.done - state.found
    if not made or state.done == state.total:
        return ""
    return f"{duration(state.seconds / made * (state.total - state.done))} left"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _lines(what: str) -> Callable[[State], None]:
    console = Console(stderr=True, width=200, highlight=False)
    last = [-EVERY]

    def report(state: State) -> None:
        now = time.monotonic()
        if now - last[0] >= EVERY or state.done == state.total:
            last[0] = now
            left = time_left(state)
            console.print(f"{what}: {state.done}/{state.total} answers{f', {left}' if left else ''}", markup=False)

    return report
