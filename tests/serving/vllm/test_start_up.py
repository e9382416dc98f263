"""What is refused when an engine starts, and what the plugin finds: without loading a model."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.engine.arg_utils import EngineArgs

from loopcd.models import HuginnConfig, OuroConfig
from loopcd.serving.vllm import ARCHITECTURES, register
from loopcd.serving.vllm.processor import LoopCDProcessor
from loopcd.serving.vllm.start_up import _check_speculation, latest
from tools import configure, save_model, tiny_huginn, tiny_ouro

PROCESSOR = "loopcd.serving.vllm.processor:LoopCDProcessor"


NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


@pytest.fixture(params=["huginn", "ouro"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    makers: dict[str, Callable[..., Any]] = {"huginn": tiny_huginn, "ouro": tiny_ouro}
    return save_model(tmp_path / request.param, makers[request.param]())


def configured(folder: Path, **arguments: Any) -> Any:
    return EngineArgs(model=str(folder), dtype="float32", max_model_len=64, **arguments).create_engine_config()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"speculative_config": NGRAM}, "runner V1 then leaves out logits processors"),
        ({"pipeline_parallel_size": 2}, "pipeline"),
        ({"logits_processors": [PROCESSOR]}, "it would be applied twice"),
        ({"logits_processors": [LoopCDProcessor]}, "it would be applied twice"),
        ({"additional_config": {"loopcd": {"amateur_loops": [4]}}}, "amateur_loops=[4]"),
        ({"additional_config": {"loopcd": {"default": {"strength": -1}}}}, "strength=-1"),
    ],
)
def test_what_would_go_wrong_in_silence_is_refused(arguments: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        configured(folder, **arguments)
    assert said.lower() in str(caught.value).lower()


def test_speculation_without_amateur_loops_is_vllms_own_affair(folder: Path) -> None:
    configured(folder, speculative_config=NGRAM, additional_config={"loopcd": {"amateur_loops": []}})
    served = latest()
    assert served is not None and served.read_request(None) is None
    with pytest.raises(ValueError, match="amateur loops none"):
        served.read_request({"loopcd": True})


@pytest.mark.parametrize(
    ("config", "method", "said"),
    [(OuroConfig(), "ngram", None), (OuroConfig(), "eagle", "method 'eagle'"), (HuginnConfig(), "ngram", "own coda entries")],
)
def test_speculation_beside_loopcd_on_the_runner_of_gpus(config: Any, method: str, said: str | None) -> None:
    """By hand: a configuration for runner V2 needs Triton, which CPUs do not have."""
    whole = SimpleNamespace(speculative_config=SimpleNamespace(method=method), use_v2_model_runner=True)
    whole.model_config = SimpleNamespace(hf_config=config)
    if said is None:
        _check_speculation(whole)
        return
    with pytest.raises(ValueError, match=said):
        _check_speculation(whole)


def test_another_version_of_vllm_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.1+cpu")
    with pytest.raises(ValueError, match=r"vLLM 0\.32\.x, and 0\.33\.1\+cpu is installed"):
        configured(folder)


def test_the_front_end_learns_what_is_served(folder: Path) -> None:
    configured(folder, additional_config={"loopcd": {"amateur_loops": [3], "default": {"strength": 0.5}}})
    served = latest()
    assert served is not None and served.amateur_loops == (3,) and served.num_loops == 4
    assert served.default is not None and served.default.strength == 0.5


def test_the_public_checkpoints_configurations_need_no_remote_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    name = {"huginn_raven": "RavenForCausalLM", "ouro": "OuroForCausalLM"}[config["model_type"]]
    remote = {"AutoConfig": "raven_config.Config", "AutoModelForCausalLM": "modeling.Model"}
    configure(folder, architectures=[name], auto_map=remote)
    found = configured(folder)
    assert type(found.model_config.hf_config).__module__ == "loopcd.models.configs"
    assert found.model_config.architecture == name


def test_registering_again_changes_nothing() -> None:
    from vllm import ModelRegistry

    register()
    before = {name: ModelRegistry.models[name] for name in ARCHITECTURES}
    register()
    assert {name: ModelRegistry.models[name] for name in ARCHITECTURES} == before
