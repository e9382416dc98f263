"""`loopcd lens`: what its arguments are taken for, what it writes, and how it fails."""

import json
import re
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lens.viewing import MADE, paired_traces
from loopcd.cli import main
from loopcd.evaluation.engine import LocalEngine
from loopcd.tracing import TraceWriter
from processes import forked
from tools import save_model, tiny_huginn


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["lens", *map(str, arguments)])


def data_of(page: Path) -> dict[str, Any]:
    (found,) = re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    return json.loads(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), tiny_huginn(seed=3))


@pytest.fixture(scope="module")
def files(engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Greedy's traces in one file, LoopCD's in another."""
    paths = [tmp_path_factory.mktemp("traces") / name for name in ("greedy.npz", "loopcd.npz")]
    pairs = [paired_traces(engine, prompt, 5) for prompt in MADE]
    for side, path in enumerate(paths):
        with TraceWriter(path) as writer:
            for pair in pairs:
                writer.add(pair[side])
    return paths


def test_prompts_are_exported(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    made = run("--export", page, "--model", folder, "--max-new-tokens", 5, "--amateur-loop", 1, "--json", *MADE)
    assert made.exit_code == 0, made.output
    told = json.loads(made.stdout)
    assert (told["file"], told["bytes"], told["examples"]) == (str(page), page.stat().st_size, 2)
    examples = data_of(page)["examples"]
    assert [each["prompt"] for each in examples] == list(MADE)
    assert [trace["method"] for trace in examples[0]["traces"]] == ["Greedy()", "LoopCD(amateur_loop=1)"]


def test_texts_of_one_prompt_are_paired_across_files(files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("--export", page, files[1], files[0]).exit_code == 0
    examples = data_of(page)["examples"]
    assert [(each["prompt"], [trace["method"][:6] for trace in each["traces"]]) for each in examples] == [
        (prompt, ["Greedy", "LoopCD"]) for prompt in MADE
    ]
    assert run("--export", page, "--limit", 1, *files).exit_code == 0
    assert len(data_of(page)["examples"]) == 1 and "1 more" in data_of(page)["note"]


def test_a_prompt_may_be_longer_than_the_name_of_a_file(tmp_path: Path) -> None:
    page, prompt, folder = tmp_path / "report.html", "word " * 60, save_model(tmp_path / "model", tiny_huginn(block_size=512))
    made = run("--export", page, "--model", folder, "--max-new-tokens", 3, prompt)
    assert made.exit_code == 0, made.output
    assert [each["prompt"] for each in data_of(page)["examples"]] == [prompt]


@pytest.mark.slow
def test_without_arguments_differing_problems_of_the_built_in_task_are_exported(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    made = run("--export", page, "--problems", 16, "--strength", 3)
    assert made.exit_code == 0, made.output
    data = data_of(page)
    assert data["examples"] and all(each["differs"] for each in data["examples"])
    assert "16 problems of steps" in data["note"]
    assert all(trace["extra"]["correct"] in (True, False) for each in data["examples"] for trace in each["traces"])


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--export", "{out}", "missing.npz"], 1, "no file missing.npz"),
        (["--export", "{out}", "{broken}"], 1, "not a file of traces"),
        (["--export", "{out}", "{broken}", "and a prompt"], 2, "not both"),
        (["--limit", "0"], 1, "--limit 0"),
        (["--export", "{out}", "--problems", "0"], 1, "--problems 0: a whole number of at least 1"),
        (["--export", "{out}", "--max-new-tokens", "0", "hi"], 1, "--max-new-tokens 0: a whole number of at least 1"),
        (["--export", "{out}/page.html"], 1, "--export {out}/page.html: there is no folder {out}"),
        (["--export", "{out}", "{broken}", "--strength", "1"], 2, "--strength has no use with traces that are exported"),
        (["--json"], 2, "--export"),
        (["one prompt", "another"], 2, "one prompt"),
        (["--port", "99999"], 2, "--port"),
        (["--task", "nonsense"], 1, "no task 'nonsense'"),
        (["--task", "humaneval"], 1, "humaneval: the lens runs no programs"),
        (["--plausibility", "7"], 1, "plausibility=7"),
        (["--export", "{out}", "--model", "nonsense"], 1, "no model 'nonsense'"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: list[str], status: int, said: str) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a zip")
    names = {"out": tmp_path / "report.html", "broken": broken}
    made = run(*(each.format(**names) for each in arguments))
    assert (made.exit_code, said.format(**names) in made.stderr) == (status, True), made.output
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_serving_names_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == missing or each.startswith("loopcd.lens.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    made = run("--no-browser")
    assert made.exit_code == 1 and "loopcd[lens]" in made.stderr


def test_it_serves_until_it_is_interrupted(folder: Path) -> None:
    with forked(["lens", "--no-browser", "--model", folder]) as running:
        address = running.stdout.readline().decode().split()[-1]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32,}", address)
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.read().startswith(b"<!doctype html>")
        running.signal(signal.SIGINT)
        said = running.stderr.read()
        assert running.wait() in (0, 130)
        assert b"Traceback" not in said
