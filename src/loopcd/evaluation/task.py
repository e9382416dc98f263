"""What a task is: items with prompts, how far to generate, and how texts are graded. Everything else is the runner's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from loopcd.evaluation.code.bridge import CodeSettings
from loopcd.evaluation.data import shuffled_rank

# test: the whole benchmark. tuning: what settings are chosen on. report: the benchmark without what was tuned on; the
# same as `test` where the tuning items come from elsewhere (a training split, a generator).
Split = Literal["test", "tuning", "report"]
Grades = dict[str, bool]  # by metric; "cheated" stands beside them where a program did, which counts as wrong


@dataclass(frozen=True)
class Item:
    """One problem. `id` is unique within the task and does not depend on how many items are run."""

    id: str
    prompt: str
    gold: Any  # what a reader should see as the right answer; text or a number
    document: Any = field(default=None, compare=False, repr=False)  # whatever the grader needs besides
    solution: str | None = field(default=None, compare=False, repr=False)  # a right answer, where `gold` only describes it

    def notes(self, task: str) -> dict[str, Any]:
        """What a trace of an answer says about its item."""
        return {"item": self.id, "task": task, "gold": self.gold if isinstance(self.gold, str | int | float) else None}


@dataclass(frozen=True)
class TaskOptions:
    """What a user may say about a task; each task refuses what it has no use for."""

    data: Path | None = None  # a folder with the data files; None: from the hub
    split: Split = "test"
    limit: int | None = None  # a fixed subset of this many items
    max_new_tokens: int | None = None  # the task's own if None
    exemplars: Path | None = None  # worked examples of the user's own
    code: CodeSettings | None = None  # how programs that a model wrote are run; None: they are not
    chat: Chat | None = None  # renders the code tasks' prompts; None: they are plain
    graded: bool = True  # False: only the items are wanted, and nothing is made ready for grading


def tuning_half(items: Sequence[Item], options: TaskOptions) -> tuple[Sequence[Item], str]:
    """Of a benchmark that has no split to tune on: its half that the options ask for, and what it is; "" where all of it is."""
    if options.split == "test":
        return items, ""
    tuning = _drawn(items, len(items) // 2, "half/")
    if options.split == "tuning":
        return [item for item in items if item.id in tuning], "a seeded half"
    return [item for item in items if item.id not in tuning], "the other half"


def limited(items: Sequence[Item], options: TaskOptions) -> list[Item]:
    """A fixed, seeded subset in the given order; a smaller one is part of a larger one. Texts and grades are kept by id, so ids
    that stand there twice are refused."""
    for name, number in Counter(item.id for item in items).most_common(1):
        if number > 1:
            raise ValueError(f"the data has {number} items with the id {name!r}: each needs an id of its own")
    if options.limit is None:
        return list(items)
    chosen = _drawn(items, options.limit)
    return [item for item in items if item.id in chosen]


def _drawn(items: Sequence[Item], number: int, purpose: str = "") -> set[str]:
    """The ids of so many of the items."""
    return set(sorted((item.id for item in items), key=lambda name: shuffled_rank(purpose + name))[:number])


@dataclass(frozen=True)
class Ceiling:
    """How many of the items' own reference answers pass, by metric: a method cannot be expected to score above that."""

    passed: dict[str, int]
    total: int
    failed: tuple[str, ...]  # items whose reference answer does not pass all

    def describe(self) -> str:
        names = ", ".join(self.failed[:4]) + (", …" if len(self.failed) > 4 else "")
        passed = " and ".join(f"{metric} {number}" for metric, number in self.passed.items())
        failed = f" (not {names})" if self.failed else ""
        return f"Reference solutions pass {passed} of these {self.total} here{failed}."


class Task(ABC):
    """A benchmark, ready to run. Made by the module that `tasks` has under its name: `make(name, options)`."""

    name: str
    protocol: str  # whose prompts, stops and readings these are: the paper's authors', lm-eval's, or our own
    metrics: tuple[str, ...]  # "strict" and "flex" where the paper has them; comparisons use the first
    stop: tuple[str, ...]  # texts that end an answer
    max_new_tokens: int
    items: Sequence[Item]  # the items to be run, after `limit`, in the benchmark's order

    @abstractmethod
    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        """Right or wrong, by metric, for each item's text, as far as the first stop text. Called once for all texts of a
        method, several of which may answer the same item; must be repeatable."""

    def ceiling(self) -> Ceiling | None:
        """Of these items, found by the same road as the grades; None where every reference answer is right."""
        return None

    @abstractmethod
    def question(self, prompt: str) -> str:
        """The question within a prompt, without worked examples and template: what SelfEval asks the model about."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """For the manifest, JSON values only: data source and sha256, shots, template, what grades the answers.

        What stands under "machine" is recorded with where it runs, and may change when a run goes on.
        """


# -- a tokenizer's chat template, handed to the tasks whose prompts are made with it

Messages = Sequence[dict[str, str]]  # each with "role" and "content"


@dataclass(frozen=True)
class Chat:
    """What renders messages for a model; made by `chat_of`."""

    model: str
    tokenizer: Any = field(repr=False)

    def render(self, messages: Messages) -> str:
        if self.tokenizer is None:
            return "\n".join(message["content"] for message in messages)
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False)
        except Exception as error:  # a template is a program, and may raise whatever it likes
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"the chat template of {self.model} fails to render ({reason}): mend it, or say --no-chat for the plain prompt"
            ) from error


ELSEWHERE = Chat("texts made elsewhere", None)  # their template is not known, and no model reads these prompts


def chat_of(model: str, tokenizer: Any) -> Chat | None:
    """None where there is no tokenizer, or none with a template."""
    return Chat(model, tokenizer) if getattr(tokenizer, "chat_template", None) else None
