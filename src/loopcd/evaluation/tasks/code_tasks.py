"""HumanEval and MBPP with EvalPlus's base and plus tests as the paper's authors ran them: 164 and 378 problems, zero-shot.

Where the tokenizer has a chat template the prompt is EvalPlus's chat prompt, else the problem as it stands in the data. The
program is EvalPlus's `sanitize` of what the model wrote; if nothing is left of that, of the problem and what it wrote.
`base` and `plus` are judged each by itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from loopcd.decoding.texts import trim
from loopcd.evaluation.code import bridge
from loopcd.evaluation.code.bridge import NEEDS_CONSENT, CodeSettings, Dataset, Grading, Program, ProgramVerdict
from loopcd.evaluation.data import DataFile, read_lines
from loopcd.evaluation.paper import MAX_NEW_TOKENS
from loopcd.evaluation.task import Ceiling, Chat, Grades, Item, Task, TaskOptions, limited, tuning_half
from loopcd.tracing.writing import write_whole

FILES: dict[Dataset, str] = {"humaneval": "HumanEvalPlus-v0.1.10.jsonl.gz", "mbpp": "MbppPlus-v0.2.0.jsonl.gz"}
_ENDS = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(")
CHAT_STOP = (*_ENDS, "\n```\n")
PLAIN_STOP = (*_ENDS, "\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert ")
TAB = "    "


@dataclass(frozen=True)
class CodeTask(Task):
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
        return [verdict.grades() for verdict in self._run(items, programs)]

    def ceiling(self) -> Ceiling:
        """How many reference solutions pass, by the same road as a model's programs.

        It is below all: EvalPlus 0.3.1 can never pass HumanEval/32, and some of MBPP+ run into its time limits on a busy
        machine. What passed on this machine is kept, so that it is found out once.
        """
        of = f"{self.name}-{self.file.sha256[:12]}-{self._allowed().versions.replace(' ', '-')}"
        path = bridge.cache_folder() / "gold" / f"{of}-each.json"
        known: dict[str, list[bool]] = {}
        with suppress(OSError, ValueError):
            known = json.loads(path.read_text())
        new = [item for item in self.items if item.id not in known]
        if new:
            programs = [Program(item.id, item.document["prompt"] + item.document["canonical_solution"]) for item in new]
            known |= {item.id: list(verdict.passed) for item, verdict in zip(new, self._run(new, programs), strict=True)}
            path.parent.mkdir(parents=True, exist_ok=True)
            own = path.with_suffix(f".{os.getpid()}")  # two runs at a time may write it
            write_whole(own, json.dumps(known, indent=1)).replace(path)
        passed = {item.id: known[item.id] for item in self.items}
        counts = {metric: sum(both[place] for both in passed.values()) for place, metric in enumerate(self.metrics)}
        return Ceiling(counts, len(self.items), tuple(name for name, both in passed.items() if not all(both)))

    def _run(self, items: Sequence[Item], programs: Sequence[Program]) -> tuple[ProgramVerdict, ...]:
        self._allowed()
        problems = {item.id: item.document for item in items}  # each once, however many programs solve it
        return bridge.grade(self.name, list(problems.values()), programs, self.settings, progress=show_progress).verdicts

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
    settings, found, data = options.code, None, options.data
    if settings is None:
        raise ValueError(f"{name}: {NEEDS_CONSENT}")
    if options.graded:
        found = bridge.check(name, settings)  # now, not after hours of generating
        sys.stderr.write(f"isolation in force: {found.isolation}; {settings.limits.describe()}\n")
    path = bridge.download(name, settings) if data is None else data / FILES[name]
    problems, file = read_lines(path.parent, path.name)
    prompts = [problem["prompt"] for problem in problems]
    if options.chat is not None:
        prompts = chat_prompts(prompts, options.chat, settings)
    items = [
        Item(
            problem["task_id"],
            prompt,
            f"whatever passes the tests of {problem['entry_point']}",
            problem,
            solution=problem["canonical_solution"],
        )
        for problem, prompt in zip(problems, prompts, strict=True)
    ]
    kept, part = tuning_half(items, options)
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


def show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rrunning programs {done}/{total}" + ("\n" if done == total else ""))
        sys.stderr.flush()


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
    asked = json.dumps({"problems": problems, "instruction": INSTRUCTION, "response": RESPONSE})
    run = bridge.run_python(_ASK, settings, input=asked)
    if run.returncode != 0:
        raise ValueError(
            f"EvalPlus, run by {settings.interpreter}, could not word the chat prompts ({bridge.last_line(run.stderr)}): "
            "pip install 'loopcd[code]', name an interpreter that has it by --evalplus-python, or say --no-chat for the "
            "plain prompt"
        )
    worded = json.loads(run.stdout)
    parted = [chat.render(messages).partition(worded["mark"]) for messages in worded["messages"]]
    if not all(mark for _, mark, _ in parted):
        raise ValueError(
            f"the chat template of {chat.model} leaves out how the answer begins, so that EvalPlus's prompt cannot be made "
            "with it: say --no-chat for the plain prompt"
        )
    return [before for before, _, _ in parted]
