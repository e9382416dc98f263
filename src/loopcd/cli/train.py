"""`loopcd train`"""

from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import main

WORTH_COMPILING = 5.0  # minutes; compiling takes about one, which a shorter run would spend on little else


@main.command()
@click.argument("recipe")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder of the run: states, log, curves, the model."
)
@click.option("--minutes", type=float, help="Fit the schedule into this time (the recipe's own length if not given).")
@click.option("--resume", is_flag=True, help="Go on where the run in the folder was interrupted.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, help="Threads for torch.")
@click.option("--no-compile", is_flag=True, help="Do not compile the layers (slower, starts at once); so below 5 minutes.")
def train(recipe: str, out: Path, minutes: float | None, no_compile: bool, **options: Any) -> None:
    """Train RECIPE (tiny-huginn, tiny-ouro or tiny-cue); a run can be interrupted and resumed."""
    from loopcd import training

    compiled = not no_compile and (minutes is None or not minutes < WORTH_COMPILING)
    made = training.train(recipe, out, minutes=minutes, compiled=compiled, **options)
    click.echo(f"made {made}", err=True)
