"""Benchmarks by name. A task's module is imported when it is asked for: some need libraries that not everyone installs."""

from __future__ import annotations

from importlib import import_module

from loopcd.evaluation.task import Task, TaskOptions

# each module has `make(name, options) -> Task`
TASKS = {
    "steps": "loopcd.evaluation.tasks.word_problems",
    "steps-easy": "loopcd.evaluation.tasks.word_problems",
    "steps-hard": "loopcd.evaluation.tasks.word_problems",
    "steps-shift": "loopcd.evaluation.tasks.word_problems",
    "steps-cue": "loopcd.evaluation.tasks.word_problems",
    "steps-cue-shift": "loopcd.evaluation.tasks.word_problems",
    "gsm8k": "loopcd.evaluation.tasks.gsm8k",
    "gsm8k-lm-eval": "loopcd.evaluation.tasks.gsm8k_lm_eval",
    "math500": "loopcd.evaluation.tasks.math500",
    "strategyqa": "loopcd.evaluation.tasks.strategyqa",
    "humaneval": "loopcd.evaluation.tasks.code_tasks",
    "mbpp": "loopcd.evaluation.tasks.code_tasks",
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
    if chosen.max_new_tokens is not None and chosen.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens {chosen.max_new_tokens}: a whole number of at least 1")
    return import_module(TASKS[name]).make(name, chosen)
