"""Programs graded by EvalPlus, on a few problems written for this test. Needs EvalPlus in this interpreter: `make setup`
installs it without the API clients that it asks for."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evaluation.fakes import FakeEngine
from evaluation.problems import DOUBLE, HALF, SWAP, settings
from loopcd.decoding import Generation, Greedy, Method
from loopcd.evaluation.code.bridge import Grading, Program, check, grade
from loopcd.evaluation.engine import CompletionRequest
from loopcd.evaluation.evaluate import evaluate
from loopcd.evaluation.plan import RunPlan, parse_methods
from loopcd.evaluation.report import note
from loopcd.evaluation.task import Task, TaskOptions
from loopcd.evaluation.tasks import code_tasks

# what is written after the prompt of `double`, and EvalPlus's words for it
WRITTEN = {
    "right": ("    return x + x\n", "pass", "pass"),
    "with chatter after it": ("    return x + x\n\nI hope that helps!\nprint(double(3", "pass", "pass"),
    "with a fence": ("    return x + x\n```\nExplanation: it doubles.", "pass", "pass"),
    "right on the base tests only": ("    return abs(x) * 2\n", "pass", "fail"),
    "right on the plus tests only": ("    return 2 * x if x not in (1, 2) else 0\n", "fail", "pass"),
    "wrong": ("    return x + 1\n", "fail", "fail"),
    "nothing": ("", "fail", "fail"),
    "no Python": ("    return x +\n", "fail", "fail"),
    "raises": ("    raise SystemExit(0)\n", "fail", "fail"),
    "endless": ("    while True: pass\n", "fail", "fail"),  # EvalPlus calls a test that takes too long a failed one
    "leaves": ("    import posix\n    posix._exit(0)\n", "timeout", "timeout"),
    "kills all": ("    import ctypes\n    ctypes.CDLL(None).kill(-1, 9)\n    ctypes.CDLL(None).kill(1, 9)\n", "", ""),
    "eats memory": ("    return len(bytearray(10**12)) * x\n", "fail", "fail"),
    "a million characters": ("    return x + x  #" + "x" * 1_000_000, "too long", "too long"),
    "half a surrogate": ("    return x + x  # \ud800\n", "fail", "fail"),
    "a null character": ("    return x + x  # \0\n", "any", "any"),
    "brackets without end": ("    return x + x\n\ny = " + "(" * 90_000 + "\n", "any", "any"),
    "very deep brackets": ("    return " + "[" * 5_000 + "x" + "]" * 5_000 + "\n", "fail", "fail"),
    "a very long number": ("    return x + x + " + "9" * 90_000 + "\n", "fail", "fail"),
    "a changed codec": ("    # -*- coding: rot13 -*-\n    return x + x\n", "pass", "pass"),
    "an exception that cannot be shown": (
        "    class Odd(BaseException):\n        def __str__(self):\n            raise self\n    raise Odd()\n    return 0\n",
        "fail",
        "fail",
    ),
    "forges": (
        "    import posix\n    for number in range(3, 99):\n        try:\n"
        '            posix.write(number, b\'{"base": "pass"}\\n{"plus": "pass"}\\n\')\n'
        "        except OSError:\n            pass\n    return 0\n",
        "cheated",
        "cheated",
    ),
}
# what is written after the prompt, without repeating it
CONTINUED = ("\n    return x + x\n", "def double(x):\n    return x + x\n", "def other(x):\n    return x + x\n")


@pytest.fixture(scope="module")
def graded() -> Grading:
    """All of these in one run: it is EvalPlus's start that takes time. The last two are another problem's."""
    programs = [Program("HumanEval/9001", DOUBLE["prompt"] + text) for text, _, _ in WRITTEN.values()]
    programs += [Program("HumanEval/9001", text, before=DOUBLE["prompt"]) for text in CONTINUED]
    programs += [
        Program("HumanEval/9002", HALF["prompt"] + text) for text in ("    return x * 0.5\n", "    return x * 0.50001\n")
    ]
    return grade("humaneval", [DOUBLE, HALF], programs, settings(workers=2))


@pytest.mark.parametrize("number", range(len(WRITTEN)), ids=list(WRITTEN))
def test_verdicts(graded: Grading, number: int) -> None:
    _, base, plus = list(WRITTEN.values())[number]
    verdict = graded.verdicts[number]
    if base == "any":  # it depends on the parser's version; what counts is that there is a verdict
        return
    if base:  # else it depends on the isolation how it ends
        assert (verdict.base, verdict.plus) == (base, plus)
    assert verdict.passed == (base == "pass", plus == "pass")


def test_a_text_without_a_program_is_put_behind_the_problem(graded: Grading) -> None:
    """And one that holds a program of its own is not, whatever stands in it."""
    found = graded.verdicts[len(WRITTEN) : len(WRITTEN) + len(CONTINUED)]
    assert [verdict.passed for verdict in found] == [(True, True), (True, True), (False, False)]


def test_tolerance_is_evalpluss(graded: Grading) -> None:
    assert [verdict.passed for verdict in graded.verdicts[-2:]] == [(True, True), (False, False)]


def test_the_report_says_what_was_in_force(graded: Grading) -> None:
    assert graded.versions.startswith("EvalPlus 0.3.1 on Python 3.")
    assert graded.isolation.startswith(("namespaces (", "user ("))
    assert "no sockets" in graded.isolation


def data_folder(folder: Path, dataset: Any, *problems: dict[str, Any]) -> Path:
    lines = "".join(json.dumps(problem) + "\n" for problem in problems)
    (folder / code_tasks.FILES[dataset]).write_bytes(gzip.compress(lines.encode()))
    return folder


@dataclass(frozen=True)
class SwapEngine(FakeEngine):
    """Greedy writes the function as it should be, every other method a wrong one."""

    def complete(self, prompts: Sequence[str], method: Method, request: CompletionRequest) -> list[Generation]:
        text = f"def swap(pair):\n    return pair{'[::-1]' if isinstance(method, Greedy) else ''}\n"
        return [Generation(text, [1], "stop", [4], 0, 0) for _ in prompts]


def test_an_evaluation_is_graded_beside_its_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    broken = {**SWAP, "task_id": "Mbpp/9004", "canonical_solution": "\ndef swap(pair):\n    return object()\n"}
    data = data_folder(tmp_path, "mbpp", SWAP, broken)
    task = code_tasks.make("mbpp", TaskOptions(data=data, code=settings()))
    assert isinstance(task, Task)
    assert "isolation in force: " in capsys.readouterr().err
    made = evaluate(task, SwapEngine(), RunPlan(parse_methods("greedy,loopcd")), tmp_path / "run")
    assert [outcome.grades for outcome in made.outcomes] == [
        ({"base": True, "plus": True}, {"base": False, "plus": False}),
        ({"base": False, "plus": True}, {"base": False, "plus": False}),  # the plus test is of a pair of equals
    ]
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["ceiling"] == {"passed": {"base": 1, "plus": 1}, "total": 2, "failed": ["Mbpp/9004"]}
    said = "Reference solutions pass base 1 and plus 1 of these 2 here (not Mbpp/9004)."
    assert said in made.report.read_text() and said in note(made.results)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"]["task"]["isolation"] in ("namespaces", "user")
    assert manifest["machine"]["code_workers"] == 1

    def not_again(*_: Any, **__: Any) -> Grading:
        raise AssertionError("the reference solutions were run before")

    swapped, same = "def swap(pair):\n    return pair[::-1]\n", "def swap(pair):\n    return pair\n"
    several = task.grade([task.items[0]] * 2, [same, swapped])
    assert several == [{"base": False, "plus": True}, {"base": True, "plus": True}]
    monkeypatch.setattr("loopcd.evaluation.code.bridge.grade", not_again)
    assert task.ceiling() == made.results.ceiling


@dataclass(frozen=True)
class CheatEngine(FakeEngine):
    """Greedy writes the function as it should be, every other method one whose result equals everything."""

    def complete(self, prompts: Sequence[str], method: Method, request: CompletionRequest) -> list[Generation]:
        cheat = "    class Anything:\n        __eq__ = lambda self, other: True\n    return Anything()"
        text = f"def swap(pair):\n{'    return pair[::-1]' if isinstance(method, Greedy) else cheat}\n"
        return [Generation(text, [1], "stop", [4], 0, 0) for _ in prompts]


def test_cheats_are_wrong_and_counted_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = data_folder(tmp_path, "mbpp", SWAP, {**SWAP, "task_id": "Mbpp/9004"})
    task = code_tasks.make("mbpp", TaskOptions(data=data, code=settings()))
    plan = RunPlan(parse_methods("greedy,loopcd"))
    evaluate(task, CheatEngine(), plan, tmp_path / "run")
    made = evaluate(task, CheatEngine(), plan, tmp_path / "run")  # now from the grades on disk
    assert made.outcomes[1].grades == ({"base": False, "plus": False, "cheated": True},) * 2
    found = json.loads((tmp_path / "run" / "results.json").read_text())["methods"]
    assert (found["loopcd"]["cheated"], found["loopcd"]["base"]["accuracy"], "cheated" in found["greedy"]) == (2, 0.0, False)
    assert "cheated: loopcd 2 (" in made.report.read_text()


def test_prompts_and_subsets(tmp_path: Path) -> None:
    data = data_folder(tmp_path, "humaneval", DOUBLE, HALF)
    task = code_tasks.make("humaneval", TaskOptions(data=data, limit=1, code=settings()))
    assert len(task.items) == 1
    item = task.items[0]
    assert item.prompt == item.document["prompt"]
    assert task.question(item.prompt) == item.prompt.strip()
    json.dumps(task.describe())


def test_weak_isolation_is_refused_unless_insisted_on() -> None:
    with pytest.raises(ValueError, match="say --weak-isolation"):
        check("humaneval", settings(level="limits"))
    program = Program("HumanEval/9001", DOUBLE["prompt"] + "    return x + x\n")
    report = grade("humaneval", [DOUBLE], [program], settings(level="limits", weak=True))
    assert report.verdicts[0].passed == (True, True)
    assert report.isolation.startswith("limits (")
