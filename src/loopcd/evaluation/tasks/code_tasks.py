"""HumanEval and MBPP with EvalPlus's base and plus tests as the paper's authors ran them: 164 and 378 problems, zero-shot.

Where the tokenizer has a chat template the prompt is EvalPlus's chat prompt, else the problem as it stands in the data. The
program is EvalPlus's `sanitize` of what the model wrote; if nothing is left of that, of the problem and what it wrote.
`base` and `plus` are judged each by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopcd.decoding.texts import trim
from loopcd.evaluation.code.bridge import (
    NEEDS_CONSENT,
    CodeSettings,
    Dataset,
    Grading,
    Program,
    cache_folder,
    check,
    download,
    grade,
)
from loopcd.evaluation.data import DataFile, read_lines
from loopcd.evaluation.task import Ceiling, Chat, Grades, Item, TaskOptions, limited, tuning_half
from loopcd.tracing.writing import write_whole

FILES: dict[Dataset, str] = {"humaneval": "HumanEvalPlus-v0.1.10.jsonl.gz", "mbpp": "MbppPlus-v0.2.0.jsonl.gz"}
MAX_NEW_TOKENS: dict[Dataset, int] = {"humaneval": 512, "mbpp": 1024}
_ENDS = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(")
CHAT_STOP = (*_ENDS, "\n```\n")
PLAIN_STOP = (*_ENDS, "\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert ")
TAB = "    "


@dataclass(frozen=True)
class CodeTask:
    """A benchmark of programs. Graded only where the user allowed to run them, and where they can be shut in."""

    name: Dataset
    items: Sequence[Item]
    max_new_tokens: int
    stop: tuple[str, ...]
    file: DataFile
    split: str
    prompt: str  # "chat" or "plain"
    found: Grading | None  # what programs are run with; None: the items alone were asked for
    settings: CodeSettings = field(repr=False)
    metrics: tuple[str, ...] = ("base", "plus")

    @property
    def protocol(self) -> str:
        return f"paper, {self.prompt} prompt"

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        programs = [
            Program(item.id, trim(text, self.stop)[0].replace("\t", TAB), before=item.document["prompt"])
            for item, text in zip(items, texts, strict=True)
        ]
        return [verdict.grades() for verdict in self._run([item.document for item in items], programs).verdicts]

    def ceiling(self) -> Ceiling:
        versions = self._allowed().versions
        return ceiling(self.name, [item.document for item in self.items], self.file.sha256, versions, self._run)

    def _run(self, problems: Sequence[dict[str, Any]], programs: Sequence[Program]) -> Grading:
        self._allowed()
        return grade(self.name, problems, programs, self.settings, progress=show_progress)

    def _allowed(self) -> Grading:
        if self.found is None:
            raise ValueError(f"{self.name}: {NEEDS_CONSENT}")
        return self.found

    def question(self, prompt: str) -> str:
        """The problem itself: a chat prompt wraps it."""
        return next((item.document["prompt"] for item in self.items if item.prompt == prompt), prompt).strip()

    def describe(self) -> dict[str, Any]:
        report = self._allowed()
        return {
            "grader": f"{report.versions}, base and plus tests, each program shut in by itself",
            "isolation": report.level,
            "limits": self.settings.limits.describe(),
            "machine": {"code_workers": self.settings.at_a_time, "evalplus_python": self.settings.interpreter},
            "data": [self.file.describe()],
            "split": self.split,
            "shots": 0,
            "template": "EvalPlus's chat prompt" if self.prompt == "chat" else "{prompt}",
        }


def make(name: Dataset, options: TaskOptions) -> CodeTask:
    settings = options.code
    if settings is None:
        raise ValueError(f"{name}: {NEEDS_CONSENT}")
    found = None
    if options.graded:
        found = check(name, settings)  # now, not after hours of generating
        sys.stderr.write(f"isolation in force: {found.isolation}; {settings.limits.describe()}\n")
    problems, file = _problems(name, options.data, settings)
    kept, part = tuning_half(_items(problems, options.chat, settings), options)
    return CodeTask(
        name,
        limited(kept, options),
        options.max_new_tokens or MAX_NEW_TOKENS[name],
        PLAIN_STOP if options.chat is None else CHAT_STOP,
        file,
        part or "test",
        "plain" if options.chat is None else "chat",
        found,
        settings,
    )


def _problems(name: Dataset, data: Path | None, settings: CodeSettings) -> tuple[list[dict[str, Any]], DataFile]:
    if data is not None:
        return read_lines(data, FILES[name])
    path = download(name, settings)
    return read_lines(path.parent, path.name)


def _items(problems: Sequence[dict[str, Any]], chat: Chat | None, settings: CodeSettings) -> list[Item]:
    prompts = [problem["prompt"] for problem in problems]
    if chat is not None:
        prompts = chat_prompts(prompts, chat, settings)
    return [
        Item(
            problem["task_id"],
            prompt,
            f"whatever passes the tests of {problem['entry_point']}",
            problem,
            solution=problem["canonical_solution"],
        )
        for problem, prompt in zip(problems, prompts, strict=True)
    ]


def show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rrunning programs {done}/{total}" + ("\n" if done == total else ""))
        sys.stderr.flush()


# -- the ceiling: how many reference solutions pass, by the same road as a model's programs
#
# It is below all: EvalPlus 0.3.1 can never pass HumanEval/32, and some of MBPP+ run into its time limits on a busy machine.
# What passed on this machine is kept, so that it is found out once.

RunPrograms = Callable[[Sequence[dict[str, Any]], Sequence[Program]], Grading]


def ceiling(dataset: str, problems: Sequence[dict[str, Any]], data_hash: str, versions: str, run: RunPrograms) -> Ceiling:
    """Of these problems; those that were not tried on this machine before are tried now."""
    path = cache_folder() / "gold" / f"{dataset}-{data_hash[:12]}-{versions.replace(' ', '-')}-each.json"
    known = _known(path)
    new = [problem for problem in problems if problem["task_id"] not in known]
    if new:
        programs = [Program(problem["task_id"], problem["prompt"] + problem["canonical_solution"]) for problem in new]
        verdicts = run(new, programs).verdicts
        known |= {problem["task_id"]: list(verdict.passed) for problem, verdict in zip(new, verdicts, strict=True)}
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")  # two runs at a time may write it
        write_whole(own, json.dumps(known, indent=1)).replace(path)
    passed = [known[problem["task_id"]] for problem in problems]
    failed = tuple(problem["task_id"] for problem, both in zip(problems, passed, strict=True) if not all(both))
    counts = {"base": sum(base for base, _ in passed), "plus": sum(plus for _, plus in passed)}
    return Ceiling(counts, len(passed), failed)


def _known(path: Path) -> dict[str, list[bool]]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


# -- EvalPlus's chat prompts: its own function words the messages, in the interpreter that has it; our tokenizer renders them

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
