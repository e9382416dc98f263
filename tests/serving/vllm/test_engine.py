"""`loopcd eval --engine vllm`: the same texts, grades and tables as the local engine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from loopcd.cli import main
from loopcd.decoding import NoiseCD
from loopcd.serving.vllm.engine import VLLMEngine
from loopcd.serving.vllm.options import EngineOptions
from tools import save_model, tiny_ouro

pytestmark = pytest.mark.slow
METHODS = ("greedy", "loopcd", "loopcd:amateur_loop=1,strength=0.6", "loopguidance:weight=0.5")


def evaluated(out: Path, *arguments: str) -> dict[str, Any]:
    command = ["eval", "--limit", "16", "--max-new-tokens", "96", "--json", "--out", str(out), *arguments]
    made = CliRunner().invoke(main, command, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    return json.loads(made.stdout)


@pytest.mark.parametrize("model", ["tiny-huginn", "tiny-ouro"])
def test_the_same_accuracies_as_the_local_engine(model: str, tmp_path: Path) -> None:
    check_same(model, tmp_path)
    manifest = json.loads((tmp_path / "vllm" / "manifest.json").read_text())["settings"]
    assert manifest["model"]["engine"] == "vllm" and manifest["methods"]["greedy"] == {}


@pytest.mark.parametrize("family", ["nanbeige", "retrofit", "olmo"])
def test_the_same_texts_for_the_other_families(family: str, subject: Callable[[str], Any], tmp_path: Path) -> None:
    """Random weights, so that no answer is right: what counts are the tokens."""
    check_same(str(subject(family).folder), tmp_path, "--limit", "8", "--max-new-tokens", "24")


def test_a_sampled_evaluation_of_a_model_whose_context_does_not_fit(tmp_path: Path) -> None:
    """More prompts than a pass may have tokens, so that chunked prefill would read one of them in parts."""
    folder = save_model(tmp_path / "model", tiny_ouro(hidden_size=128, total_ut_steps=32, max_position_embeddings=100_000))
    command = ("--model", str(folder), "--engine", "vllm", "--methods", "greedy", "--temperature", "0.7", "--limit", "32")
    evaluated(tmp_path / "vllm", *command, "--max-new-tokens", "2")
    too_long = ["eval", *command, "--max-new-tokens", "90000", "--out", str(tmp_path / "long")]
    made = CliRunner().invoke(main, too_long)
    assert made.exit_code == 1 and "with 90000 new ones: there is memory for texts of" in made.output


def check_same(model: str, folder: Path, *more: str) -> None:
    methods = ",".join(METHODS)
    local = evaluated(folder / "local", "--model", model, "--methods", methods, *more)
    other = evaluated(folder / "vllm", "--model", model, "--methods", methods, "--engine", "vllm", *more)
    assert set(other["methods"]) == set(local["methods"]) == set(METHODS)
    for name, told in local["methods"].items():
        for metric in ("strict", "flex"):
            assert other["methods"][name][metric] == told[metric], name
    for samples in (folder / "local" / "samples").iterdir():
        assert lines(folder / "vllm" / "samples" / samples.name) == lines(samples)


COMMAND = ("eval", "--model", "tiny-ouro", "--methods", "greedy,loopcd", "--limit", "32", "--max-new-tokens", "96", "--json")


def test_a_killed_replica_ends_an_evaluation_with_a_word_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """Batches of four, so that there is something to keep and something left to do when one of two replicas goes."""
    command = [*COMMAND, "--engine", "vllm", "--data-parallel", "2", "--batch-size", "4", "--out", str(tmp_path / "vllm")]
    with started(command, tmp_path / "first") as first:
        wait_until(lambda: answered(tmp_path) >= 4, first)
        engines = [each for each in psutil.Process(first.pid).children(recursive=True) if "EngineCore_DP" in each.name()]
        assert len(engines) == 2
        engines[1].kill()
        assert first.wait(600) == 1
    said = (tmp_path / "first").read_text()
    assert "loopcd: a replica of vLLM is gone" in said and "Traceback" not in said.partition("loopcd: a replica")[2]
    kept = answered(tmp_path)
    assert 4 <= kept < 64
    with started(command, tmp_path / "second") as second:
        assert second.wait(600) == 0, (tmp_path / "second").read_text()[-3000:]
    again = (tmp_path / "second").read_text()
    assert f"{kept}/64 answers" in again and "killing" not in again and "sending SIGTERM" not in again
    local = evaluated(tmp_path / "local", "--model", "tiny-ouro", "--methods", "greedy,loopcd", "--limit", "32")
    table = json.loads((tmp_path / "second.json").read_text())["methods"]
    for name, told in local["methods"].items():
        assert {key: table[name][key] for key in ("strict", "flex")} == {key: told[key] for key in ("strict", "flex")}
    for samples in (tmp_path / "local" / "samples").iterdir():
        assert lines(tmp_path / "vllm" / "samples" / samples.name) == lines(samples)


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[Any]]:
    """The command line in a process of its own, its standard output in a file beside the log."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as said, log.with_suffix(".json").open("w") as told:
        full = [sys.executable, "-m", "loopcd.cli", *command]
        running = subprocess.Popen(full, stdout=told, stderr=said, env=environment, start_new_session=True)
    try:
        yield running
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)


def answered(folder: Path) -> int:
    return sum(len(each.read_text().splitlines()) for each in (folder / "vllm" / "samples").glob("*.jsonl"))


def wait_until(done: Callable[[], bool], running: subprocess.Popen[Any]) -> None:
    begun = time.monotonic()
    while not done():
        assert running.poll() is None and time.monotonic() - begun < 600
        time.sleep(0.05)


def lines(path: Path) -> dict[str, tuple[Any, ...]]:
    kept = ("text", "token_ids", "finish_reason", "loops")
    return {line["id"]: tuple(line[key] for key in kept) for line in map(json.loads, path.read_text().splitlines())}


def test_methods_that_vllm_does_not_have_are_refused() -> None:
    engine = VLLMEngine.__new__(VLLMEngine)  # the check needs no engine
    with pytest.raises(ValueError, match=r"--engine vllm has greedy, loopcd and loopguidance.*not NoiseCD"):
        engine.extra_args(NoiseCD())
    with pytest.raises(ValueError, match="whole number of at least 1"):
        VLLMEngine.load(EngineOptions("tiny-ouro"), batch_size=0)
