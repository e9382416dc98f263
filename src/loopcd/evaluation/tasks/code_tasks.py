"""HumanEval and MBPP with EvalPlus's base and plus tests: 164 and 378 problems, zero-shot, direct completion.

Prompt, stop strings and token limit are those of EvalPlus's own generation for base models; a program is the prompt and what
the model wrote after it, sanitised by EvalPlus. `plus` needs the base tests passed too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopcd.evaluation.code.bridge import NEEDS_CONSENT, CodeSettings, Dataset, Program, Report, check, download, grade
from loopcd.evaluation.code.gold import ceiling
from loopcd.evaluation.data import DataFile, halves, read_lines, subset
from loopcd.evaluation.task import Ceiling, Grades, Item, TaskOptions

FILES: dict[Dataset, str] = {"humaneval": "HumanEvalPlus-v0.1.10.jsonl.gz", "mbpp": "MbppPlus-v0.2.0.jsonl.gz"}
MAX_NEW_TOKENS = 768
_ENDS = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(")
STOP: dict[Dataset, tuple[str, ...]] = {
    "humaneval": (*_ENDS, "\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert "),
    "mbpp": (*_ENDS, '\n"""', "\nassert"),
}
TEMPLATE = "{prompt without surrounding space}\n"


@dataclass(frozen=True)
class CodeTask:
    """A benchmark of programs. Made only where the user allowed to run them, and where they can be shut in."""

    name: Dataset
    items: Sequence[Item]
    max_new_tokens: int
    stop: tuple[str, ...]
    file: DataFile
    split: str
    versions: str
    isolation: str
    settings: CodeSettings = field(repr=False)
    metrics: tuple[str, ...] = ("base", "plus")

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        programs = [Program(item.document["task_id"], item.prompt + text) for item, text in zip(items, texts, strict=True)]
        passed = [verdict.passed for verdict in self._run([item.document for item in items], programs).verdicts]
        return [{"base": base, "plus": plus} for base, plus in passed]

    def ceiling(self) -> Ceiling:
        return ceiling(self.name, [item.document for item in self.items], self.file.sha256, self.versions, self._run)

    def _run(self, problems: Sequence[dict[str, Any]], programs: Sequence[Program]) -> Report:
        return grade(self.name, problems, programs, self.settings, progress=show_progress)

    def question(self, prompt: str) -> str:
        return prompt.strip()

    def describe(self) -> dict[str, Any]:
        return {
            "grader": f"{self.versions}, base and plus tests, each program shut in by itself",
            "isolation": self.isolation,
            "limits": self.settings.limits.describe(),
            "machine": {"code_workers": self.settings.at_a_time, "evalplus_python": self.settings.interpreter},
            "data": [self.file.describe()],
            "split": self.split,
            "shots": 0,
            "template": TEMPLATE,
        }


def make(name: Dataset, options: TaskOptions) -> CodeTask:
    settings = options.code
    if settings is None:
        raise ValueError(f"{name}: {NEEDS_CONSENT}")
    found = check(name, settings)  # now, not after hours of generating
    say(f"isolation in force: {found.isolation}; {settings.limits.describe()}")
    problems, file = _problems(name, options.data, settings)
    made = [_item(problem) for problem in problems]
    split = "test"
    if options.split != "test":
        tuning, report = halves(made, [item.id for item in made])
        made, split = (tuning, "a seeded half") if options.split == "tuning" else (report, "the other half")
    return CodeTask(
        name,
        subset(made, options.limit, [item.id for item in made]),
        options.max_new_tokens or MAX_NEW_TOKENS,
        STOP[name],
        file,
        split,
        found.versions,
        found.level,
        settings,
    )


def _problems(name: Dataset, data: Path | None, settings: CodeSettings) -> tuple[list[dict[str, Any]], DataFile]:
    if data is not None:
        return read_lines(data, FILES[name])
    path = download(name, settings)
    return read_lines(path.parent, path.name)


def _item(problem: dict[str, Any]) -> Item:
    gold = f"whatever passes the tests of {problem['entry_point']}"
    return Item(problem["task_id"], problem["prompt"].strip() + "\n", gold, problem)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rrunning programs {done}/{total}" + ("\n" if done == total else ""))
        sys.stderr.flush()
