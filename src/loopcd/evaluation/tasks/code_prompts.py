"""EvalPlus's chat prompts: its own function words the messages, in the interpreter that has it; our tokenizer renders them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from loopcd.evaluation.chat import Chat
from loopcd.evaluation.code.bridge import CodeSettings

# the two sentences that EvalPlus's command line puts before the problem and before the answer
INSTRUCTION = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
RESPONSE = "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"

# Standard input: JSON of the problems and the two sentences. Standard output: the messages of each, and the mark at which the
# rendered text is cut. The stand-in for a tokenizer keeps the messages instead of rendering them.
_ASK = """
import json, sys
from evalplus.provider.utility import _MAGIC_SPLITTER_, make_raw_chat_prompt

class Recorder:
    chat_template = "any"
    def apply_chat_template(self, messages, **options):
        self.messages = messages
        return ""

asked, recorder, found = json.load(sys.stdin), Recorder(), []
for problem in asked["problems"]:
    make_raw_chat_prompt(problem, asked["instruction"], asked["response"], recorder)
    found.append(recorder.messages)
json.dump({"messages": found, "mark": _MAGIC_SPLITTER_}, sys.stdout)
"""


def chat_prompts(problems: Sequence[str], chat: Chat, settings: CodeSettings) -> list[str]:
    """The prompt of each problem, which ends where the program is to begin."""
    worded = _worded(problems, settings)
    return [_rendered(chat, messages, worded["mark"]) for messages in worded["messages"]]


def _rendered(chat: Chat, messages: list[dict[str, str]], mark: str) -> str:
    before, found, _ = chat.render(messages).partition(mark)
    if not found:
        raise ValueError(
            f"the chat template of {chat.model} leaves out how the answer begins, so that EvalPlus's prompt cannot be made "
            "with it: say --no-chat for the plain prompt"
        )
    return before


def _worded(problems: Sequence[str], settings: CodeSettings) -> dict[str, Any]:
    asked = json.dumps({"problems": list(problems), "instruction": INSTRUCTION, "response": RESPONSE})
    command = [settings.interpreter, "-c", _ASK]
    try:
        run = subprocess.run(command, input=asked, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError as error:
        raise ValueError(
            f"{settings.interpreter} cannot be run ({error}): --evalplus-python names an interpreter with EvalPlus"
        ) from error
    if run.returncode != 0:
        last = run.stderr.strip().splitlines()[-1] if run.stderr.strip() else "it said nothing"
        raise ValueError(
            f"EvalPlus, run by {settings.interpreter}, could not word the chat prompts ({last}): pip install 'loopcd[code]', "
            "name an interpreter that has it by --evalplus-python, or say --no-chat for the plain prompt"
        )
    return json.loads(run.stdout)
