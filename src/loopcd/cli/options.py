"""Options that several commands share, and what can be refused before torch is imported, which takes seconds: names of models
and tasks, and a missing consent."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from loopcd.models.names import local_folder


class ModelName(click.ParamType):
    """A built-in name, a folder, or a hub id."""

    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        local_folder(value)
        return str(value)


class Count(click.types.IntParamType):
    """A whole number of at least 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = super().convert(value, param, ctx)
        if number < 1:
            raise ValueError(f"{param.opts[0] if param else 'number'} {number}: a whole number of at least 1")
        return number


_TASKS = "gsm8k, math500, strategyqa, humaneval, mbpp, gsm8k-lm-eval; built in: steps, -easy, -hard, -shift, -cue, -cue-shift."
_FOLDER, _FLAG, COUNT = {"type": click.Path(path_type=Path)}, {"is_flag": True}, Count()
_SHARED: dict[str, dict[str, Any]] = {  # arguments of click.option
    "model": {"type": ModelName(), "default": "tiny-huginn", "help": "A built-in name, a folder, or a hub id."},
    "num-loops": {"type": COUNT, "help": "Loops to run (the model's own number if not given)."},
    "dtype": {"help": "float32, bfloat16 or float16 (the checkpoint's own if not given)."},
    "device": {"help": "cpu, cuda, ... (a GPU where there is one)."},
    "quantize": {"type": click.Choice(["int8"]), "help": "Round the weights; computes in bfloat16."},
    "allow-pickle": {**_FLAG, "help": "Also read weights that there are only as pickles; nothing in them is run."},
    "temperature": {"type": float, "default": 0.0, "help": "0 takes the best token."},
    "top-p": {"type": float, "default": 1.0},
    "chat": {**_FLAG, "help": "Prompts are what a user says: they go through the tokenizer's chat template."},
    "json": {**_FLAG, "help": "Print one JSON object."},
    "limit": {"type": COUNT, "help": "A fixed subset of this many items."},
    "out": {**_FOLDER, "help": "Folder (below results/ if not given); the same command goes on."},
    # of tasks
    "task": {"default": "steps", "help": _TASKS},
    "data": {**_FOLDER, "help": "Folder with the task's files (from the hub if not given)."},
    "exemplars": {**_FOLDER, "help": "strategyqa: a JSON file of worked examples."},
    "no-chat": {**_FLAG, "help": "humaneval, mbpp: the plain prompt, whatever template the tokenizer has."},
    "max-new-tokens": {"type": COUNT, "help": "Longest answer (the task's own limit if not given)."},
    "batch-size": {"type": COUNT, "help": "Prompts run together (by the model's size if not given)."},
    "allow-code-execution": {**_FLAG, "help": "humaneval, mbpp: run the programs that the model wrote."},
    "evalplus-python": {"help": "humaneval, mbpp: an interpreter that has EvalPlus (this one if not given)."},
    "code-workers": {"type": COUNT, "help": "humaneval, mbpp: programs at a time (half of the cores if not given)."},
    "weak-isolation": {**_FLAG, "help": "humaneval, mbpp: go on where programs cannot be shut in."},
}
PROGRAMS = ("allow-code-execution", "evalplus-python", "code-workers", "weak-isolation")  # how a model's programs are run


def shared(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """These options, in this order."""

    def optioned(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            called, told = ("as_json",) if name == "json" else (), _SHARED[name]
            function = click.option(f"--{name}", *called, show_default="default" in told, **told)(function)
        return function

    return optioned


def check_idle(names: Iterable[str], why: str) -> None:
    """Refuse options that were given and that the rest of the command line leaves without use."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in names and context.get_parameter_source(str(parameter.name)) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} has no use {why}")


def check_task(name: str, allow_code_execution: bool = True, advice: str | None = None) -> None:
    """Refuse a task that there is not, and one that runs programs where nobody allowed it; what to do about that."""
    from loopcd.evaluation.code.bridge import NEEDS_CONSENT
    from loopcd.evaluation.tasks import CODE_TASKS, check_name

    check_name(name)
    if name in CODE_TASKS and not allow_code_execution:
        raise ValueError(f"{name}: {advice or NEEDS_CONSENT}")
