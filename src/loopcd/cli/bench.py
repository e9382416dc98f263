"""`loopcd bench`"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import main, print_tables
from loopcd.cli.options import shared


@main.command()
@click.option(
    "--models",
    "names",
    help="Built-in names or folders, comma-separated (all built-in ones if not given); full sizes by hub id.",
)
@click.option("--batch", default="1,8", show_default=True, help="Batch sizes, comma-separated.")
@click.option(
    "--what",
    help="By commas: methods, exact, decode; where asked for: vllm, reference, full-size.",
)
@click.option("--dtype", help="Of the models, in the methods' and the exact part: float32, bfloat16, float16.")
@click.option("--reference", help="For the part of that name: PYTHON,FOLDER, an interpreter and the public code.")
@click.option("--rounds", type=int, help="Rounds in which everything is timed once.")
@click.option("--max-new-tokens", type=int, help="Longest text of the methods' part.")
@click.option("--quick", is_flag=True, help="Few rounds and small sizes: within a minute.")
@click.option("--compare", "earlier", type=click.Path(), help="JSON of an earlier run: what changed since.")
@click.option(
    "--from",
    "stored",
    multiple=True,
    type=click.Path(),
    help="JSON of a run to show, instead of running one; again for further parts.",
)
@shared("json")
def bench(
    names: str | None,
    batch: str,
    what: str | None,
    dtype: str | None,
    reference: str | None,
    rounds: int | None,
    max_new_tokens: int | None,
    quick: bool,
    earlier: str | None,
    stored: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure speed and memory: ratios of things run alternately in one process, with their spread."""
    from loopcd import bench as measuring

    before = None if earlier is None else _read_run(earlier)
    if stored:
        with _believed(stored):
            found = measuring.merged([_read_run(each) for each in stored])
    else:
        settings = measuring.Settings(
            what=None if what is None else tuple(_comma_separated(what, "--what")),
            models=None if names is None else _comma_separated(names, "--models"),
            batches=_whole_numbers(batch, "--batch"),
            rounds=rounds,
            max_new_tokens=max_new_tokens,
            quick=quick,
            reference=reference,
            dtype=dtype,
        )
        found = measuring.run(settings, lambda line: click.echo(line, err=True))
    with _believed(stored + (() if earlier is None else (earlier,))):
        changes = None if before is None else measuring.compare(found, before)
        if as_json:
            listed = [{**asdict(each), "change": each.change, "flagged": each.flagged} for each in changes or ()]
            click.echo(json.dumps(found if changes is None else {**found, "changes": listed}))
            return
        shown = measuring.tables(found) + ([] if changes is None else [measuring.change_table(changes)])
        print_tables(*(each.rich() for each in shown))


@contextmanager
def _believed(files: tuple[str, ...]) -> Iterator[None]:
    """What goes wrong with runs that were read from files is theirs: anything may stand there."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        if not files:
            raise
        raise ValueError(
            f"{', '.join(files)}: not all of this is the JSON of a run ({type(error).__name__}: {error})"
        ) from error


def _read_run(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not the JSON of a run: {error}") from error
    if not isinstance(found, dict) or "ratios" not in found or "machine" not in found:
        raise ValueError(f"{path} is not the JSON of a run: it has no `ratios` and `machine`")
    return found


def _comma_separated(text: str, flag: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise click.UsageError(f"{flag} {text!r}: at least one, separated by commas")
    return parts


def _whole_numbers(text: str, flag: str) -> list[int]:
    try:
        return [int(part) for part in _comma_separated(text, flag)]
    except ValueError as error:
        raise click.UsageError(f"{flag} {text!r}: whole numbers, separated by commas") from error
