"""`loopcd reproduce` from the outside."""

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.labs import Counting
from loopcd.analysis.elements import ELEMENTS
from loopcd.analysis.reproduce import DEFAULT_LIMIT, limited
from loopcd.cli import main
from loopcd.cli.reproduce import command_line
from loopcd.evaluation.session import Session

SMALL = ["--limit", "6", "--max-new-tokens", "6", "--batch-size", "3", "--no-tuning"]
FIGURES = ("fig2a", "fig2bc", "fig3", "fig4", "fig5", "fig6")


def called(*arguments: Any) -> Any:
    return CliRunner().invoke(main, ["reproduce", *(str(argument) for argument in arguments)])


@pytest.mark.slow
def test_every_element_on_a_built_in_model(tmp_path: Path) -> None:
    """On the easy problems, which the model answers rightly often enough for every element to have something to count."""
    options = ["--model", "tiny-ouro", "--task", "steps-easy", "--limit", "4", "--max-new-tokens", "28", "--no-tuning"]
    result = called("all", *options, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["elements"]) == list(ELEMENTS) and found["report"] == str(tmp_path / "report.html")
    for name in ELEMENTS:
        kept = json.loads((tmp_path / f"{name}.json").read_text())
        assert kept["element"] == name and kept["rows"] and kept["settings"]["items"] == 4
        assert kept["finding"]["sentence"] == found["elements"][name]["sentence"]
        assert kept["command"].startswith(f"loopcd reproduce {name} --model tiny-ouro --task steps-easy --limit 4")
        rows = list(csv.reader((tmp_path / f"{name}.csv").open()))
        assert len(rows) == len(kept["rows"]) + 1 and len({len(row) for row in rows}) == 1
        assert kept["finding"]["found"] in (tmp_path / f"{name}.md").read_text()
        assert "nan" not in kept["finding"]["sentence"].split()
    for name in FIGURES:
        if name != "fig6" or json.loads((tmp_path / "fig6.json").read_text()).get("examples"):
            ET.parse(tmp_path / f"{name}.svg")
            assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in ELEMENTS)


def test_a_second_element_uses_what_the_first_one_made(folders: dict[str, Path], tmp_path: Path, counting: Counting) -> None:
    options = ["--model", folders["ouro"], "--out", tmp_path, *SMALL]
    assert called("fig4", *options).exit_code == 0
    made = counting.prompts
    assert made == 6
    assert called("table6,fig5", *options).exit_code == 0
    assert counting.prompts == made
    assert called("app", *options).exit_code == 0
    assert counting.prompts == made + 6
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    assert called("fig4", *options).exit_code == 0
    assert "From earlier runs, which may have had other settings: [table6]" in (tmp_path / "README.md").read_text()
    assert counting.prompts == made + 6
    assert {name: (tmp_path / name).read_bytes() for name in files if name.startswith("fig4")} == {
        name: content for name, content in files.items() if name.startswith("fig4")
    }


@pytest.mark.parametrize("name", ["README.md", "report.html"])
def test_files_of_the_users_own_are_not_written_over(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    refused = called("fig4", "--model", folders["ouro"], "--out", tmp_path, *SMALL)
    assert refused.exit_code == 1 and f"{tmp_path} holds {name}, which is no reproduction's" in refused.stderr
    assert (tmp_path / name).read_text() == "mine"


def test_an_interrupted_command_says_so_and_goes_on(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch, most=1)
    options = ["fig4", "--model", folders["huginn"], "--out", tmp_path, *SMALL]
    stopped = called(*options)
    assert stopped.exit_code == 130 and "interrupted" in stopped.stderr and not (tmp_path / "report.html").exists()
    counting.most = None
    assert called(*options).exit_code == 0
    assert counting.batches == 2 and (tmp_path / "report.html").exists()


def test_progress_goes_to_standard_error_and_findings_to_standard_output(folders: dict[str, Path], tmp_path: Path) -> None:
    result = called("table6", "--model", folders["ouro"], "--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.output
    assert "6/6 answers" in result.stderr and "answers" not in result.stdout.splitlines()[0]
    assert "The paper's claim" in result.stdout and f"Report: {tmp_path / 'report.html'}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table11"], "there is no element 'table11': known are fig2a"),
        (["table1,table1"], "table1 stands there twice"),
        (["table1", "--task", "gsm9k"], "there is no task 'gsm9k'"),
        (["table1", "--limit", "0"], "--limit 0"),
        (["table1", "--model", "nowhere"], "there is no model 'nowhere'"),
        (["table1", "--batch-size", "0"], "--batch-size 0"),
        (["table1", "--task", "humaneval"], "humaneval"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = called(*arguments, "--out", tmp_path / "out")
    assert result.exit_code in (1, 2)
    assert said in result.stderr and "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(folders: dict[str, Path]) -> None:
    result = called("fig4", "--model", folders["ouro"], "--out", "/proc/paper", *SMALL)
    assert result.exit_code == 1 and "/proc/paper" in result.stderr


def test_the_shown_command_names_no_place_of_this_machine() -> None:
    options = {
        "data": Path("/home/me"),
        "limit": 5,
        "dtype": None,
        "allow_code_execution": True,
        "task": "mbpp",
        "model": "a b",
    }
    shown = command_line("table1", options, tuned=False)
    assert shown == "loopcd reproduce table1 --model 'a b' --task mbpp --limit 5 --data DIR --allow-code-execution --no-tuning"


def test_only_the_word_problems_have_a_limit_of_their_own() -> None:
    assert limited(Session(task="steps-hard")) == DEFAULT_LIMIT
    assert limited(Session(task="gsm8k")) is None and limited(Session(task="gsm8k", limit=7)) == 7
