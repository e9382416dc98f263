"""`loopcd reproduce`"""

import json
import shlex
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import main
from loopcd.cli.options import COUNT, PROGRAMS, check_task, shared

_LOCAL = {"data": "DIR", "exemplars": "FILE", "evalplus_python": "PYTHON"}  # places on this machine, left open when shown


@main.command()
@click.argument("element")
@shared("model")
@click.option(
    "--task", default="steps", show_default=True, help="gsm8k, math500, strategyqa, ...; built in: steps, steps-hard, ..."
)
@click.option("--limit", type=COUNT, help="A fixed subset of this many items (steps: 200 if not given; else all).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for tables, figures and report.html.")
@click.option("--cache", type=click.Path(path_type=Path), help="Folder of answers and traces (OUT/cache if not given).")
@shared("data", "exemplars")
@click.option(
    "--tuning/--no-tuning",
    "tuned",
    default=None,
    help="Table 2: choose settings on tuning items, or take presets (if not given: the paper's own, else chosen).",
)
@shared("no-chat", "max-new-tokens", "num-loops", "batch-size", "dtype", "device", "allow-pickle", *PROGRAMS, "json")
def reproduce(element: str, out: Path | None, cache: Path | None, tuned: bool | None, as_json: bool, **options: Any) -> None:
    """A table or figure of the paper: fig2a fig2bc fig3 ... fig6, table1 ... table10, app, or all.

    What is generated is kept in the cache and shared between elements. Stop it at any time and run it again.
    """
    check_task(options["task"], options["allow_code_execution"])
    from dataclasses import replace

    from loopcd.analysis.elements import elements
    from loopcd.analysis.laboratory import Laboratory, Tally
    from loopcd.analysis.reproduce import REPORT, limited
    from loopcd.analysis.reproduce import reproduce as run
    from loopcd.evaluation.engine import LocalEngine
    from loopcd.evaluation.progress import showing_progress
    from loopcd.evaluation.session import Session
    from loopcd.tracing.writing import own_folder

    context = click.get_current_context()
    program = "loopcd reproduce" if context.parent else context.command_path  # experiments/ runs it by itself
    elements(element)  # a name that is not known is refused before anything is loaded
    session = Session(**options)
    session = replace(session, limit=limited(session))
    folder = out or Path("results") / f"paper-{session.task}-{Path(session.model).name}"
    session.make_task()
    engine = LocalEngine.load(
        session.model, session.dtype, session.device, session.num_loops, session.batch_size, session.allow_pickle
    )
    with showing_progress(f"{element}, {session.task}, {session.model}") as report:
        lab = Laboratory(session, engine, cache or own_folder(folder / "cache", folder), Tally(report), tuned)
        pages = run(element, lab, folder, lambda name: command_line(name, options, tuned, program))
    if as_json:
        findings = {page.name: page.result.finding for page in pages}
        told = {name: {"verdict": each.verdict, "sentence": each.sentence} for name, each in findings.items()}
        click.echo(json.dumps({"report": str(folder / REPORT), "elements": told, "settings": lab.settings()}))
        return
    for page in pages:
        click.echo(f"{page.title}\n  {page.result.finding.sentence}\n")
    click.echo(f"Report: {folder / REPORT}")


def command_line(element: str, options: dict[str, Any], tuned: bool | None, program: str = "loopcd reproduce") -> str:
    """What makes one element, as a user would type it; places on this machine are left open."""
    words = [*program.split(), element]
    first = ("model", "task", "limit")
    for name, value in sorted(options.items(), key=lambda each: first.index(each[0]) if each[0] in first else len(first)):
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value not in (None, False):
            words += [flag, _LOCAL.get(name, str(value))]
    if tuned is not None:
        words.append("--tuning" if tuned else "--no-tuning")
    return shlex.join(words)
