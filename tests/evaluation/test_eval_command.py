"""`loopcd eval` and `loopcd sweep` from the outside, on tiny models with random weights."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evaluation.fakes import PROTOCOL, contents
from evaluation.test_code_evalplus import DOUBLE, data_folder
from loopcd.cli import main
from processes import forked
from tools import byte_tokenizer, save_model, tiny_huginn, tiny_ouro

SMALL = ["--limit", "6", "--max-new-tokens", "6", "--batch-size", "3"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {
        "huginn": save_model(place / "huginn", tiny_huginn(block_size=512)),
        "ouro": save_model(place / "ouro", tiny_ouro(max_position_embeddings=512)),
    }


def called(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_eval_prints_one_json_object(folders: dict[str, Path], tmp_path: Path, family: str) -> None:
    methods = "greedy,loopcd:amateur_loop=2,strength=0.1,mti,noisecd"
    result = called("eval", "--model", folders[family], "--methods", methods, "--out", tmp_path / "run", "--json", *SMALL)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["methods"]) == ["greedy", "loopcd:amateur_loop=2,strength=0.1", "mti", "noisecd"]
    assert found["items"] == 6 and found["methods"]["greedy"]["tokens_per_second"] > 0
    assert "data:" in result.stderr and "12/24" not in result.stdout


def test_eval_prints_table_and_the_reports_path(folders: dict[str, Path], tmp_path: Path) -> None:
    result = called("eval", "--model", folders["huginn"], "--out", tmp_path / "run", *SMALL)
    assert result.exit_code == 0, result.output
    assert "W→R" in result.stdout and f"Report: {tmp_path / 'run' / 'results.md'}" in result.stdout


def test_huginns_seeds_draw_its_initial_state(folders: dict[str, Path], tmp_path: Path) -> None:
    result = called("eval", "--model", folders["huginn"], "--seeds", "0,1", "--out", tmp_path / "run", "--json", *SMALL)
    assert result.exit_code == 0, result.output
    samples = tmp_path / "run" / "samples"
    assert (samples / "greedy.seed0.jsonl").read_text() != (samples / "greedy.seed1.jsonl").read_text()
    assert json.loads(result.stdout)["seeds"] == [0, 1]


def test_sampling_follows_the_seed(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        arguments = ["--seeds", "0,1", "--temperature", "1", "--methods", "greedy", "--out", tmp_path / name]
        assert called("eval", "--model", folders["ouro"], *arguments, *SMALL).exit_code == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    samples = contents(tmp_path / "one")
    assert samples["samples/greedy.seed0.jsonl"] != samples["samples/greedy.seed1.jsonl"]


def test_sweep_chooses_and_reports(folders: dict[str, Path], tmp_path: Path) -> None:
    arguments = ["--methods", "greedy,loopcd", "--out", tmp_path / "sweep", "--json"]
    result = called("sweep", "--model", folders["ouro"], *arguments, *SMALL)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(found["tuning"]["methods"]) == 10 and len(found["report"]["methods"]) == 2


def test_programs_are_asked_for_by_the_models_own_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, data = (
        save_model(tmp_path / "model", tiny_ouro(max_position_embeddings=2048)),
        data_folder(tmp_path, "humaneval", DOUBLE),
    )
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = PROTOCOL["chat_template"]
    tokenizer.save_pretrained(folder)
    wanted = ["--model", folder, "--task", "humaneval", "--data", data, "--allow-code-execution", "--max-new-tokens", 3]
    for form, more in (("chat", []), ("plain", ["--no-chat"])):
        asked = ["eval", *wanted, "--methods", "greedy", "--json", "--out", tmp_path / form, *more]
        result = called(*asked)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["protocol"] == f"paper, {form} prompt"
        task = json.loads((tmp_path / form / "manifest.json").read_text())["settings"]["task"]
        assert task["protocol"] == f"paper, {form} prompt" and ("\n```\n" in task["stop"]) == (form == "chat")
        before = contents(tmp_path / form)
        assert called(*asked).exit_code == 0 and contents(tmp_path / form) == before
    other = called("eval", *wanted, "--methods", "greedy", "--no-chat", "--out", tmp_path / "chat")
    assert other.exit_code == 1 and "holds a run with other settings: task.protocol was" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "gsm9k"], "there is no task 'gsm9k': known are steps"),
        (["--methods", "greedy,best"], "there is no method 'best': known are greedy"),
        (["--methods", "loopcd:force=1"], "loopcd has no setting 'force'"),
        (["--methods", "loopcd:amateur_loop=9"], "amateur_loop=9: from 1 to 3"),
        (["--methods", "selfeval"], "SelfEval reads the label"),
        (["--seeds", "a"], "--seeds 'a'"),
        (["--limit", "0"], "--limit 0"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--out", "/proc/run"], "/proc/run"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(folders: dict[str, Path], arguments: list[str], said: str) -> None:
    result = called("eval", "--model", folders["huginn"], *arguments)
    assert result.exit_code in (1, 2)
    assert said in result.stderr and "Traceback" not in result.output


def test_the_command_killed_in_the_middle_goes_on_to_the_same_files(folders: dict[str, Path], tmp_path: Path) -> None:
    """A sampled run, since what is drawn must not depend on the stop either."""
    wanted = ["eval", "--model", str(folders["huginn"]), "--seeds", "1", "--temperature", "1", "--limit", "12"]
    wanted += ["--max-new-tokens", "4", "--batch-size", "2", "--out"]
    assert called(*wanted, tmp_path / "whole").exit_code == 0

    def finished() -> int:
        return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("killed/samples/*"))

    for enough in (1, 9):
        with forked([*wanted, tmp_path / "killed"]) as run:
            while finished() < enough and run.running():
                time.sleep(0.002)
            run.signal(signal.SIGKILL)
            said = run.stderr.read()
        assert enough <= finished() < 24, said
    assert called(*wanted, tmp_path / "killed").exit_code == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_model_whose_context_is_too_short_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "short", tiny_huginn(block_size=64))
    result = called("eval", "--model", folder, "--out", tmp_path / "run", *SMALL)
    assert result.exit_code == 1
    assert "has a context of 64: the task needs another model" in result.stderr
