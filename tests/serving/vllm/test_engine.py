"""`loopcd eval --engine vllm`: the same texts, grades and tables as the local engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loopcd.cli import main
from loopcd.decoding import NoiseCD
from loopcd.serving.vllm.engine import VLLMEngine
from loopcd.serving.vllm.options import EngineOptions

pytestmark = pytest.mark.slow
METHODS = ("greedy", "loopcd", "loopcd:amateur_loop=1,strength=0.6", "loopguidance:weight=0.5")


def evaluated(out: Path, *arguments: str) -> dict[str, Any]:
    command = ["eval", "--limit", "24", "--max-new-tokens", "96", "--json", "--out", str(out), *arguments]
    made = CliRunner().invoke(main, command, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    return json.loads(made.stdout)


@pytest.mark.parametrize("model", ["tiny-huginn", "tiny-ouro"])
def test_the_same_accuracies_as_the_local_engine(model: str, tmp_path: Path) -> None:
    methods = ",".join(METHODS)
    local = evaluated(tmp_path / "local", "--model", model, "--methods", methods)
    other = evaluated(tmp_path / "vllm", "--model", model, "--methods", methods, "--engine", "vllm")
    assert set(other["methods"]) == set(local["methods"]) == set(METHODS)
    for name, told in local["methods"].items():
        for metric in ("strict", "flex"):
            assert other["methods"][name][metric] == told[metric], name
    for samples in (tmp_path / "local" / "samples").iterdir():
        assert lines(tmp_path / "vllm" / "samples" / samples.name) == lines(samples)
    manifest = json.loads((tmp_path / "vllm" / "manifest.json").read_text())["settings"]
    assert manifest["model"]["engine"] == "vllm" and manifest["methods"]["greedy"] == {}


def lines(path: Path) -> dict[str, tuple[Any, ...]]:
    kept = ("text", "token_ids", "finish_reason", "loops")
    return {line["id"]: tuple(line[key] for key in kept) for line in map(json.loads, path.read_text().splitlines())}


def test_methods_that_vllm_does_not_have_are_refused() -> None:
    engine = VLLMEngine.__new__(VLLMEngine)  # the check needs no engine
    with pytest.raises(ValueError, match=r"--engine vllm has greedy, loopcd and loopguidance.*not NoiseCD"):
        engine.extra_args(NoiseCD())
    with pytest.raises(ValueError, match="whole number of at least 1"):
        VLLMEngine.load(EngineOptions("tiny-ouro"), batch_size=0)
