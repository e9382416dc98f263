"""What all commands share: the group, how failures are shown, progress and tables."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EPIPE
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from loopcd import __version__

_AGAIN = ": what is finished is kept, and the same command goes on"
RESUMED = {**dict.fromkeys(("eval", "sweep", "reproduce", "demo"), _AGAIN), "train": f"{_AGAIN} with --resume"}
KEEPS_NOTHING = "loopcd.keeps_nothing"  # in a context's `meta`: this call of such a command has nothing to go on with
DEBUG = "LOOPCD_DEBUG"  # set to anything, an error is shown with its traceback


class Failed(click.ClickException):
    """Something that the user can mend: one sentence, no traceback."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"loopcd: {self.message}", err=True)


class _Command(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # closed by whoever started us
                setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a table with a "?" is worth more than none
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            again = "" if KEEPS_NOTHING in ctx.meta else RESUMED.get(ctx.invoked_subcommand or "", "")
            click.echo(f"loopcd: interrupted{again}", err=True)
            ctx.exit(130)
        except Exception as error:
            if os.environ.get(DEBUG) or getattr(error, "errno", None) == EPIPE:  # click knows what a closed pipe means
                raise
            raise _told(error) from error


def _told(error: Exception) -> Failed:
    """The error as a sentence."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return Failed(f"{error.filename}: {error.strerror}")
    if isinstance(error, UnicodeEncodeError):
        return Failed(f"an argument holds what is no text in UTF-8: {error.object[error.start : error.end]!r}")
    if isinstance(error, ValueError | MemoryError | OSError | ImportError):  # libraries' messages may have several lines
        return Failed(" ".join(str(error).splitlines()) or type(error).__name__)
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be imported to look for it
        return Failed(f"the device's memory is full: {str(error).splitlines()[0]}")
    reason = (str(error).strip() or "no reason given").splitlines()[0]  # no input should lead here
    return Failed(f"{type(error).__name__}: {reason} (a mistake in loopcd or in a library that it uses; {DEBUG}=1 shows where)")


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="loopcd")
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

    console = Console(width=None if sys.stdout.isatty() else 160, markup=False)  # names of folders may hold brackets
    for part in parts:
        console.print(part)
