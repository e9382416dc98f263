"""Benchmarks by name. A task's module is imported when it is asked for: some need libraries that not everyone installs."""

from __future__ import annotations

from importlib import import_module

from loopcd.evaluation.task import Task, TaskOptions

_STEPS = ("steps", "steps-easy", "steps-hard", "steps-shift", "steps-cue", "steps-cue-shift")
TASKS = {  # module of this folder, and its function (name, options) -> Task
    **dict.fromkeys(_STEPS, "word_problems:make"),
    "gsm8k": "gsm8k:make",
    "gsm8k-lm-eval": "gsm8k:make_lm_evals",
    "math500": "math500:make",
    "strategyqa": "strategyqa:make",
    "humaneval": "code_tasks:make",
    "mbpp": "code_tasks:make",
}

CODE_TASKS = ("humaneval", "mbpp")  # their prompts depend on the tokenizer's chat template


def check_name(name: str) -> None:
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}: known are {', '.join(TASKS)}")


def make_task(name: str, options: TaskOptions | None = None) -> Task:
    """The task of that name, with its items read and its prompts made."""
    chosen = options or TaskOptions()
    check_name(name)
    if chosen.exemplars is not None and name != "strategyqa":
        raise ValueError(f"--exemplars: {name} has no use for worked examples of yours; only strategyqa reads a file of them")
    for option, number in (("--limit", chosen.limit), ("--max-new-tokens", chosen.max_new_tokens)):
        if number is not None and number < 1:
            raise ValueError(f"{option} {number}: a whole number of at least 1")
    module, _, function = TASKS[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)(name, chosen)
