"""`loopcd eval`, `loopcd sweep` and `loopcd lm-eval`"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import KEEPS_NOTHING, Failed, main, print_tables
from loopcd.cli.options import PROGRAMS, check_idle, check_task, shared

_EVALUATION = shared(  # what `eval` and `sweep` have in common
    *("model", "task", "data", "exemplars", "no-chat", "limit", "max-new-tokens", "num-loops", "batch-size", "dtype"),
    *("allow-pickle", "quantize", "device", *PROGRAMS, "json"),
)


@main.command("eval")
@_EVALUATION
@click.option("--methods", default="greedy,loopcd", show_default=True, help="With settings: loopcd:amateur_loop=2,strength=0.1")
@click.option("--settings", type=click.Choice(["paper"]), help="paper: LoopCD with Table 2's own setting for model and task.")
@click.option("--prompts", is_flag=True, help="Only print what would be asked, one JSON line an item; no weights are loaded.")
@click.option("--answers", type=click.Path(path_type=Path), help='Only grade texts made elsewhere: lines {"id", "text"}.')
@click.option("--seeds", help="As in 0,1,2,3: the initial state's (Huginn), else the draws'. The interval is then over seeds.")
@shared("temperature", "top-p")
@click.option("--engine", type=click.Choice(["local", "vllm"]), default="local", show_default=True, help="What generates.")
@click.option("--tensor-parallel", type=int, help="vllm: devices that each replica is split over.")
@click.option("--data-parallel", type=int, help="vllm: replicas.")
@shared("out")
@click.pass_context
def evaluate(
    context: click.Context,
    out: Path | None,
    as_json: bool,
    engine: str,
    tensor_parallel: int | None,
    data_parallel: int | None,
    prompts: bool,
    answers: Path | None,
    **options: Any,
) -> None:
    """Methods on a task, paired: accuracies, differences from greedy, speed. Stop it at any time and run it again."""
    check_task(options["task"], options["allow_code_execution"] or prompts)
    from loopcd.evaluation.partings import side_by_side
    from loopcd.evaluation.progress import announced, showing_progress
    from loopcd.evaluation.report import terminal
    from loopcd.evaluation.session import Session

    if prompts:
        _check_alone(context, "--prompts", "answers")
        for line in Session(**options).prompts():
            click.echo(json.dumps(line))
        return
    if answers is not None:
        _check_alone(context, "--answers")
        graded = Session(**options).grade(answers)
        click.echo(json.dumps(graded.with_speeds())) if as_json else print_tables(terminal(graded))
        return
    session = Session(**options, other_engine=_other_engine(engine, tensor_parallel, data_parallel))
    with showing_progress(f"{session.task}, {session.model}") as report:
        made = session.evaluate(out, report, announced)
    if as_json:
        click.echo(json.dumps({**made.results.with_speeds(), "report": str(made.report)}))
        return
    print_tables(terminal(made.results), side_by_side(made.examples, colours=sys.stdout.isatty()))
    click.echo(f"Report: {made.report}")


def _check_alone(context: click.Context, wanted: str, *more: str) -> None:
    """Where nothing is generated, what says how to generate is a mistake, and an interruption leaves nothing behind."""
    context.meta[KEEPS_NOTHING] = True
    idle = ("methods", "settings", "seeds", "temperature", "top_p", "engine", "tensor_parallel", "data_parallel", "out", *more)
    check_idle(idle, f"with {wanted}, which generates nothing")


def _other_engine(name: str, tensor_parallel: int | None, data_parallel: int | None) -> Callable[[Any], Any] | None:
    """What makes the engine of that name from a session; None for the local one."""
    if name == "vllm":
        from loopcd.serving.vllm.engine import evaluation_engine

        return partial(evaluation_engine, tensor_parallel=tensor_parallel or 1, data_parallel=data_parallel or 1)
    given = "--tensor-parallel" if tensor_parallel is not None else "--data-parallel" if data_parallel is not None else None
    if given is not None:
        raise click.UsageError(f"{given} is for --engine vllm")
    return None


@main.command()
@_EVALUATION
@click.option("--methods", default="greedy,loopcd,mti,noisecd", show_default=True, help="One with settings is run with these.")
@click.option("--metric", help="The metric to choose by (the task's first if not given).")
@click.option("--paper-practice", is_flag=True, help="Choose on the reported items themselves, as the paper does; marked so.")
@shared("out")
def sweep(out: Path | None, metric: str | None, paper_practice: bool, as_json: bool, **options: Any) -> None:
    """The paper's grids on items kept apart, then the chosen setting of each method once on the reported items."""
    check_task(options["task"], options["allow_code_execution"])
    from loopcd.evaluation.progress import announced, showing_progress
    from loopcd.evaluation.report import terminal
    from loopcd.evaluation.session import Session

    session = Session(**options)
    folder = out or Path("results") / f"sweep-{session.task}-{Path(session.model).name}"
    with showing_progress(f"{session.task}, {session.model}") as report:
        made = session.sweep(folder, metric, paper_practice, report, announced)
    if as_json:
        click.echo(json.dumps(made.as_json()))
        return
    print_tables(terminal(made.tuning.results), terminal(made.report.results))
    click.echo(f"Report: {made.page}")


@main.command("lm-eval", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lm_eval(arguments: tuple[str, ...]) -> None:
    """lm-eval's own command line, with looped models and the decoding methods.

    \b
    loopcd lm-eval --tasks gsm8k --num_fewshot 3 \\
        --model_args pretrained=tomg-group-umd/huginn-0125,method=loopcd,amateur_loop=8,strength=0.3
    loopcd lm-eval run --help       all of lm-eval's options

    In --model_args: pretrained (a built-in name, a folder or a hub id), method (greedy, loopcd, loopguidance, …) and
    its settings, num_loops, and the arguments of lm-eval's HF model. Log-likelihoods are the expert's.
    """
    try:
        from loopcd.evaluation.lm_eval_model import run_command_line
    except ImportError as error:
        raise Failed(str(error)) from error
    run_command_line(arguments)
