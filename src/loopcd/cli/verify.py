"""`loopcd verify`"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopcd.cli.group import main
from loopcd.cli.options import ModelName, shared

if TYPE_CHECKING:
    from loopcd.evaluation.session import Session


@main.command()
@click.argument("model", type=ModelName())
@shared("dtype", "device")
@click.option("--tokens", type=click.IntRange(2), default=24, show_default=True, help="Tokens of each text that is written.")
@click.option("--task", help="Also evaluate greedy and LoopCD on this task, beside the paper's accuracies.")
@click.option("--limit", type=int, default=200, show_default=True, help="Items of the task.")
@shared("data", "json")
@click.pass_context
def verify(
    context: click.Context,
    model: str,
    dtype: str | None,
    device: str | None,
    tokens: int,
    task: str | None,
    limit: int,
    data: Path | None,
    as_json: bool,
) -> None:
    """Whether MODEL works as it should on this machine: files, tokens, memory, ways that must agree, speed.

    The page can be sent as it is. Exit status 1 where something is wrong.
    """
    from loopcd.bench.verify import verify as run

    session = None if task is None else _session(model, task, limit, data, dtype, device)
    report = run(model, dtype=dtype, device=device, tokens=tokens, say=lambda name: click.echo(f"… {name}", err=True))
    told = report.as_json()
    if session is not None and report.right:
        told["task"] = _evaluated(session)
    if as_json:
        click.echo(json.dumps(told))
    else:
        _print(told)
    context.exit(0 if report.right else 1)


def _session(model: str, task: str, limit: int, data: Path | None, dtype: str | None, device: str | None) -> "Session":
    """What is to be evaluated; a task that cannot be is refused now, not after everything else was looked at."""
    from loopcd.evaluation.session import Session

    session = Session(model=model, task=task, limit=limit, data=data, dtype=dtype, device=device)
    session.make_task()
    return session


def _evaluated(session: "Session") -> dict[str, Any]:
    """Accuracies with intervals, and the paper's where it has this model and task."""
    from loopcd.evaluation.progress import announced, showing_progress

    with showing_progress(f"{session.task}, {session.model}") as progress:
        return session.evaluate(None, progress, announced).results.with_speeds()


def _print(told: dict[str, Any]) -> None:
    from loopcd import __version__

    click.echo(f"loopcd {__version__}: {told['model']} on {told['device']}, {told['dtype']}, {told['seconds']:.0f} s")
    for check in told["checks"]:
        numbers = []
        if check["difference"] is not None:
            numbers.append(f"largest difference {check['difference']:.2g}")
        if check["near_ties"] is not None:
            numbers.append(f"near ties {check['near_ties']:.1%}")
        more = f" ({', '.join(numbers)})" if numbers else ""
        click.echo(f"  {'right' if check['right'] else 'WRONG'}  {check['name']}: {check['found']}{more}")
    for method, found in told.get("task", {}).get("methods", {}).items():
        for metric, value in found.items():
            if isinstance(value, dict) and {"accuracy", "low", "high"} <= set(value):
                beside = found.get("paper", {}).get(metric)
                paper = "" if beside is None else f", the paper's {beside:.1%}"
                shown = f"{value['accuracy']:.1%} ({value['low']:.1%} to {value['high']:.1%})"
                click.echo(f"         {told['task']['task']} {method} {metric}: {shown}{paper}")
    click.echo("All is right." if told["right"] else "Something is wrong.")
