"""What can be refused before torch is imported, which takes seconds: names of models and tasks, and a missing consent."""

from typing import Any

import click

from loopcd.models.names import local_folder


class ModelName(click.ParamType):
    """A built-in name, a folder, or a hub id."""

    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        local_folder(value)
        return str(value)


def check_task(name: str, allow_code_execution: bool = True) -> None:
    """Refuse a task that there is not, and one that runs programs where nobody allowed it."""
    from loopcd.evaluation.code.bridge import NEEDS_CONSENT
    from loopcd.evaluation.tasks import CODE_TASKS, check_name

    check_name(name)
    if name in CODE_TASKS and not allow_code_execution:
        raise ValueError(f"{name}: {NEEDS_CONSENT}")


model_option = click.option(
    "--model", type=ModelName(), default="tiny-huginn", show_default=True, help="A built-in name, a folder, or a hub id."
)
