"""Prompts of the code tasks: EvalPlus's chat prompt where the tokenizer has a template, else the problem as it stands."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.fakes import PROTOCOL
from loopcd.evaluation.code.bridge import CodeSettings
from loopcd.evaluation.task import Chat, Task, TaskOptions, chat_of
from loopcd.evaluation.tasks import make_task
from loopcd.evaluation.tasks.code_tasks import CHAT_STOP, FILES, PLAIN_STOP, CodeTask
from tools import byte_tokenizer

PROBLEM = {
    "task_id": "HumanEval/9001",
    "prompt": '\ndef double(x: int) -> int:\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
}


def chat(template: str | None) -> Chat | None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return chat_of("mine", tokenizer)


def made(folder: Path, form: Chat | None = None, **options: Any) -> Task:
    (folder / FILES["humaneval"]).write_bytes(gzip.compress(json.dumps(PROBLEM).encode()))
    return make_task("humaneval", TaskOptions(folder, code=CodeSettings(), chat=form, graded=False, **options))


def test_the_plain_prompt_is_the_problem_as_it_stands(tmp_path: Path) -> None:
    task = made(tmp_path, chat(None))
    (item,) = task.items
    assert (item.id, item.prompt, item.solution) == ("HumanEval/9001", PROBLEM["prompt"], PROBLEM["canonical_solution"])
    assert task.stop == PLAIN_STOP and "\ndef " in PLAIN_STOP and "\n```\n" not in PLAIN_STOP
    assert task.max_new_tokens == 512 and task.protocol == "paper, plain prompt"


def test_the_chat_prompt_ends_where_the_program_begins(tmp_path: Path) -> None:
    task = made(tmp_path, chat(PROTOCOL["chat_template"]))
    (item,) = task.items
    assert item.prompt.startswith("<|im_start|>user\nPlease provide a self-contained Python script")
    assert f"\n```\n{str(PROBLEM['prompt']).strip()}\n```\n<|im_end|>\n<|im_start|>assistant\nBelow is" in item.prompt
    assert item.prompt.endswith("passes corresponding tests:\n```python\n")
    assert task.question(item.prompt) == str(PROBLEM["prompt"]).strip()
    assert task.stop == CHAT_STOP and "\n```\n" in CHAT_STOP and "\ndef " not in CHAT_STOP
    assert task.protocol == "paper, chat prompt"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m['role'] }", "the chat template of mine fails to render"),
        ("{{ raise_exception('no assistant, please') }}", "fails to render (no assistant, please): mend it, or say --no-chat"),
        ("{{ messages[0]['content'] + 1 }}", "the chat template of mine fails to render"),
        ("{{ messages[0]['content'] }}", "the chat template of mine leaves out how the answer begins"),
    ],
)
def test_a_template_that_fails_is_refused(tmp_path: Path, template: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        made(tmp_path, chat(template))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_interpreter_without_evalplus_cannot_word_the_prompts(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'evalplus'\" >&2; exit 1\n")
    python.chmod(0o755)
    (tmp_path / FILES["humaneval"]).write_bytes(gzip.compress(json.dumps(PROBLEM).encode()))
    options = TaskOptions(tmp_path, code=CodeSettings(str(python)), chat=chat(PROTOCOL["chat_template"]), graded=False)
    with pytest.raises(ValueError, match="could not word the chat prompts"):
        make_task("humaneval", options)


def test_items_alone_cannot_be_graded(tmp_path: Path) -> None:
    """No program is run that nobody allowed."""
    task = made(tmp_path)
    assert isinstance(task, CodeTask)
    for use in (lambda: task.grade(task.items, ["    return 0\n"]), task.ceiling, task.describe):
        with pytest.raises(ValueError, match="say --allow-code-execution"):
            use()
