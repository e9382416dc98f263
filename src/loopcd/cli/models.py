"""`loopcd models`"""

import json
from dataclasses import asdict

import click

from loopcd.cli.group import main, print_tables
from loopcd.cli.options import COUNT, shared


@main.command()
@click.argument("names", nargs=-1)
@click.option("--context", type=COUNT, default=4096, show_default=True, help="Tokens for which the cache is counted.")
@click.option("--num-loops", type=COUNT, help="Loops to count with (each model's own number if not given).")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of weights and cache.")
@click.option("--quantize", type=click.Choice(["int8"]), help="Count the weights as rounded; the cache is bfloat16.")
@shared("json")
def models(
    names: tuple[str, ...], context: int, num_loops: int | None, dtype: str, quantize: str | None, as_json: bool
) -> None:
    """What can be loaded: loops, parameters, memory at a context length, presets. NAMES may be folders too."""
    from loopcd.models.catalogue import describe

    try:
        rows = describe(names, context, num_loops, dtype, quantize)
    except RuntimeError as error:  # torch's, where a config.json asks for what no tensor can be
        raise ValueError(f"{', '.join(names)}: no model of these sizes can be made ({str(error).splitlines()[0]})") from error
    if as_json:
        listed = [asdict(row) for row in rows]
        click.echo(json.dumps({"context": context, "dtype": dtype, "quantize": quantize, "models": listed}))
        return
    from loopcd.evaluation.table import Table

    headings = ("model", "family", "loops", "parameters", "weights", "slots", "cache", "amateur loop", "strength")
    title = f"Looped models, cache for {context} tokens, {quantize or dtype}"
    print_tables(Table.of(title, headings, [row.cells() for row in rows], words=(0, 1)).rich())
