"""What all commands share: the group, how failures are shown, progress and tables."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click


class Failed(click.ClickException):
    """Something that the user can mend: one sentence, no traceback."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"loopcd: {self.message}", err=True)


class _Command(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, MemoryError, OSError) as error:
            raise Failed(str(error) or type(error).__name__) from error
        except KeyboardInterrupt:
            click.echo("loopcd: interrupted", err=True)
            ctx.exit(130)


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="loopcd")
def main() -> None:
    """Run looped language models, and decode them by LoopCD."""


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while something long runs, where somebody can see it."""
    if total < 2 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, _: bar.update(task, completed=done)


def print_tables(*parts: Any) -> None:
    """Rich tables and texts on standard output."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    for part in parts:
        console.print(part)
