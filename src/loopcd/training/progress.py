"""What a run shows while it trains: a bar with loss and time left on a terminal, lines elsewhere. On standard error."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class Display:
    def __init__(self, title: str, quiet: bool = False):
        self.console = Console(stderr=True, quiet=quiet, markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(title, total=1.0, status="")

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def update(self, progress: float, loss: float, seconds: float, tokens: int) -> None:
        left = seconds * (1 - progress) / max(progress, 1e-6) / 60
        status = f"{100 * progress:5.1f} %  loss {loss:.4f}  {tokens / max(seconds, 1e-9):,.0f} tokens/s  {left:.0f} min left"
        self.bar.update(self.task, completed=progress, status=status)
        if not self.console.is_terminal:
            self.console.print(f"{tokens:>12,} tokens  {status}", highlight=False)

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False)
