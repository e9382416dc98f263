"""`loopcd serve`"""

from typing import Any

import click

from loopcd.cli.group import main
from loopcd.cli.options import ModelName, shared


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("model", type=ModelName())
@click.argument("vllm_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True)
@click.option("--tensor-parallel", type=int, default=1, show_default=True, help="Devices that each replica is split over.")
@click.option("--data-parallel", type=int, default=1, show_default=True, help="Replicas.")
@shared("dtype", "num-loops")
@click.option("--amateur-loops", help="As in 4,8: the loops that LoopCD may contrast with (Huginn: its preset's; Ouro: all).")
@click.option(
    "--default-method",
    type=click.Choice(["greedy", "loopcd"]),
    default="greedy",
    show_default=True,
    help="For requests that say nothing.",
)
@click.option("--amateur-loop", type=int, help="Of the default method loopcd; the preset's if not given. Likewise:")
@click.option("--strength", type=float, help="λ.")
@click.option("--plausibility", type=float, help="α.")
def serve(
    model: str,
    vllm_options: tuple[str, ...],
    host: str,
    port: int,
    amateur_loops: str | None,
    default_method: str,
    **options: Any,
) -> None:
    """Serve MODEL (a built-in name, a folder, or a hub id) by vLLM, with OpenAI's interface and LoopCD for each request.

    A request asks for LoopCD by `vllm_xargs`: {"loopcd": true}, or any of loopcd_amateur_loop, loopcd_strength and
    loopcd_plausibility. Further options are those of `vllm serve`, and go to it.
    """
    given = {name: options.pop(name) for name in ("amateur_loop", "strength", "plausibility")}
    default = {name: value for name, value in given.items() if value is not None}
    if default and default_method != "loopcd":
        raise click.UsageError(f"--{next(iter(default)).replace('_', '-')} is for --default-method loopcd")
    from loopcd.serving.vllm.options import EngineOptions
    from loopcd.serving.vllm.server import serve as run

    loops = None if amateur_loops is None else _loops(amateur_loops)
    chosen = EngineOptions(model, amateur_loops=loops, default=default if default_method == "loopcd" else None, **options)
    run(chosen, host, port, vllm_options)


def _loops(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise click.UsageError(f"--amateur-loops {text!r}: whole numbers, separated by commas") from error
