"""`loopcd bench`"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import main, print_tables
from loopcd.cli.options import check_idle, shared


def words(text: str) -> tuple[str, ...]:
    """Several, separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise click.BadParameter(f"{text!r}: at least one, separated by commas")
    return found


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, words(text)))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: whole numbers, separated by commas") from error


@main.command()
@click.option(
    "--models",
    type=words,
    help="Built-in names or folders, comma-separated (all built-in ones if not given); full sizes by hub id.",
)
@click.option("--batch", "batches", type=numbers, default="1,8", show_default=True, help="Batch sizes, comma-separated.")
@click.option("--what", type=words, help="By commas: methods, exact, decode; where asked for: vllm, reference, full-size.")
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
def bench(earlier: str | None, stored: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Measure speed and memory: ratios of things run alternately in one process, with their spread."""
    if stored:
        check_idle(settings, "with --from, which runs nothing")
    from loopcd.bench.compare import compare
    from loopcd.bench.parts import Settings, merged, run
    from loopcd.bench.tables import change_table, tables

    before = None if earlier is None else _read_run(earlier)
    if stored:
        with _believed(stored):
            found = merged([_read_run(each) for each in stored])
    else:
        found = run(Settings(**settings), lambda line: click.echo(line, err=True))
    with _believed(stored + (() if earlier is None else (earlier,))):
        changes = None if before is None else compare(found, before)
        if as_json:
            listed = [{**asdict(each), "change": each.change, "flagged": each.flagged} for each in changes or ()]
            click.echo(json.dumps(found if changes is None else {**found, "changes": listed}))
            return
        shown = tables(found) + ([] if changes is None else [change_table(changes)])
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
