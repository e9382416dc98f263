"""Code of a model is never run unasked, and what stands in the way is said in one sentence."""

import sys
from pathlib import Path

import pytest

from evaluation.problems import DOUBLE
from loopcd.evaluation.code.bridge import CodeSettings, Program, check, grade
from loopcd.evaluation.code.isolation import filter
from loopcd.evaluation.task import TaskOptions
from loopcd.evaluation.tasks import code_tasks


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_without_consent_nothing_is_run(name: code_tasks.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", started)
    with pytest.raises(ValueError, match=r"nobody has read them: say --allow-code-execution"):
        code_tasks.make(name, TaskOptions())


def fake_python(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be run"):
        check("humaneval", CodeSettings(python=str(tmp_path / "nosuch")))


def test_an_interpreter_without_evalplus(tmp_path: Path) -> None:
    python = fake_python(tmp_path, f"exec {sys.executable} -I -S -c 'import evalplus'")
    with pytest.raises(ValueError, match=r"has no EvalPlus: pip install 'loopcd\[code\]'"):
        check("humaneval", CodeSettings(python=python))


def test_an_evalplus_that_breaks_off(tmp_path: Path) -> None:
    said = '{"level": "x", "isolation": "x", "enough": true, "versions": "0"}'
    python = fake_python(tmp_path, f"echo '{said}'; echo 'out of luck' >&2")
    with pytest.raises(ValueError, match=r"ended early with 1 programs not graded: out of luck"):
        grade("humaneval", [DOUBLE], [Program("HumanEval/9001", "b")], CodeSettings(python=python))


def test_one_program_that_cannot_be_graded_ends_the_others(tmp_path: Path) -> None:
    """Else this would wait for the one that never ends."""
    endless = Program("HumanEval/9001", DOUBLE["prompt"] + "    import time\n    time.sleep(900)\n    return 0\n")
    without_its_text = """sed 's/"text": "bad", //'"""
    python = fake_python(tmp_path, f'{without_its_text} | exec {sys.executable} "$@"')
    with pytest.raises(ValueError, match="ended early with 2 programs not graded: KeyError: 'text'"):
        grade("humaneval", [DOUBLE], [endless, Program("HumanEval/9001", "bad")], CodeSettings(python=python, workers=2))


def test_a_grading_that_is_broken_off_ends_the_grader(tmp_path: Path) -> None:
    said = '{"index": 0, "base": "pass", "plus": "pass", "seconds": 1}'
    python = fake_python(tmp_path, f"echo '{said}'; exec sleep 900")

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade("humaneval", [DOUBLE], [Program("HumanEval/9001", "a")], CodeSettings(python=python), progress=interrupted)


def test_problems_must_be_evalpluss_and_there() -> None:
    with pytest.raises(ValueError, match="the problem HumanEval/9001 has no atol: is it EvalPlus's data"):
        grade("humaneval", [{key: value for key, value in DOUBLE.items() if key != "atol"}], [], CodeSettings())
    with pytest.raises(ValueError, match="a program for a, which is none of the 1 problems"):
        grade("humaneval", [DOUBLE], [Program("a", "b")], CodeSettings())


def test_workers_must_be_some() -> None:
    with pytest.raises(ValueError, match="--code-workers 0: a whole number of at least 1"):
        CodeSettings(workers=0)


def test_the_filter_knows_every_call_on_both_machines() -> None:
    for machine in filter.MACHINES.values():
        assert len(set(machine.refused)) == len(filter.REFUSED)
        assert machine.clone not in machine.refused
