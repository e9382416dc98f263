"""`loopcd verify`"""

import json
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import main
from loopcd.cli.options import COUNT, ModelName, check_idle, check_task, shared


@main.command()
@click.argument("model", type=ModelName())
@shared("dtype", "device")
@click.option("--tokens", type=click.IntRange(2), default=24, show_default=True, help="Tokens of each text that is written.")
@click.option("--task", help="Also evaluate greedy and LoopCD on this task, beside the paper's accuracies.")
@click.option("--limit", type=COUNT, default=200, show_default=True, help="Items of the task.")
@shared("data", "json")
@click.pass_context
def verify(
    context: click.Context,
    model: str,
    tokens: int,
    task: str | None,
    limit: int,
    data: Path | None,
    as_json: bool,
    **place: Any,
) -> None:
    """Whether MODEL works as it should on this machine: files, tokens, memory, ways that must agree, speed.

    The page can be sent as it is. Exit status 1 where something is wrong.
    """
    if task is None:
        check_idle(("limit", "data"), "without --task")
    else:
        check_task(task, allow_code_execution=False, advice=f"what runs a model's programs is `loopcd eval --task {task}`")
    from loopcd.bench.verify import verify as run
    from loopcd.evaluation.session import Session

    session = None if task is None else Session(model=model, task=task, limit=limit, data=data, **place)
    if session is not None:
        session.make_task()  # one that cannot be run is refused now, not after everything else was looked at
    report = run(model, **place, tokens=tokens, say=lambda name: click.echo(f"… {name}", err=True))
    told = report.as_json()
    if session is not None and report.right:
        from loopcd.evaluation.progress import announced, showing_progress

        with showing_progress(f"{session.task}, {session.model}") as progress:
            told["task"] = session.evaluate(None, progress, announced).results.with_speeds()
    if as_json:
        click.echo(json.dumps(told))
    else:
        _print(told)
    context.exit(0 if report.right else 1)


def _print(told: dict[str, Any]) -> None:
    from loopcd import __version__

    click.echo(f"loopcd {__version__}: {told['model']} on {told['device']}, {told['dtype']}, {told['seconds']:.0f} s")
    for check in told["checks"]:
        shown = {"difference": "largest difference {:.2g}", "near_ties": "near ties {:.1%}"}
        numbers = [text.format(check[name]) for name, text in shown.items() if check[name] is not None]
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
