"""`python -m experiments`: train and measure a trajectory, write a model's card, compare rules for the amateur."""

import os
import sys
from pathlib import Path

import click

from loopcd.cli.reproduce import reproduce


@click.group(help=__doc__)
def main() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@main.command()
@click.argument("recipe")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the runs and what is measured.")
@click.option("--threads", type=int, help="Threads for torch.")
@click.option("--no-compile", is_flag=True, help="Do not compile the layers (slower, starts at once).")
def trajectory(recipe: str, out: Path, threads: int | None, no_compile: bool) -> None:
    """Train several seeds of RECIPE and measure LoopCD's effect along training; run it again to go on."""
    import torch

    from experiments.trajectory import plan_of, run_trajectory

    if threads is not None:
        torch.set_num_threads(threads)
    click.echo(f"made {run_trajectory(plan_of(recipe), out, compiled=not no_compile)}", err=True)


@main.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True))
@click.argument("model", type=click.Path(path_type=Path))
def card(run: Path, model: Path) -> None:
    """Install RUN's model in the folder MODEL and write its card; what its figures hold already is not measured again.

    Where RUN is a trajectory, what it found goes into the card of the model that is there, or of the checkpoint that its rule
    picks.
    """
    from experiments.figures import add_trajectory, make_card
    from experiments.trajectory import FILE

    click.echo(f"wrote {add_trajectory(run, model) if (run / FILE).exists() else make_card(run, model)}", err=True)


@main.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def auto(options: tuple[str, ...]) -> None:
    """An amateur chosen at every token, against the fixed loop; options are those of `loopcd reproduce`."""
    from experiments.auto import ELEMENT
    from loopcd.analysis.elements import ELEMENTS

    ELEMENTS["auto"] = ELEMENT
    reproduce.main(["auto", *options], prog_name="python -m experiments")


if __name__ == "__main__":
    sys.exit(main())
