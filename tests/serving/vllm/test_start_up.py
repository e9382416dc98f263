"""What is refused when an engine starts, and what the plugin finds: without loading a model."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs

from loopcd.models import HuginnConfig, NanbeigeConfig, OuroConfig
from loopcd.models.recognition import HUGINN_TOKENS
from loopcd.serving.vllm import ARCHITECTURES, register
from loopcd.serving.vllm.options import EngineOptions
from loopcd.serving.vllm.processor import LoopCDProcessor
from loopcd.serving.vllm.server import serve
from loopcd.serving.vllm.start_up import LoopedStartUp, _check_speculation, check_ray
from tools import GOLDEN, MAKERS, configure, rewrite, save_model, tiny_huginn, tiny_nanbeige

PROCESSOR = "loopcd.serving.vllm.processor:LoopCDProcessor"


NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


@pytest.fixture(params=["huginn", "ouro"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save_model(tmp_path / request.param, MAKERS[request.param]())


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
    served = LoopedStartUp.latest
    assert served is not None and served.read_request(None) is None
    with pytest.raises(ValueError, match="amateur loops none"):
        served.read_request({"loopcd": True})


@pytest.mark.parametrize(
    ("config", "method", "said"),
    [
        (OuroConfig(), "ngram", None),
        (NanbeigeConfig(), "ngram", None),
        (OuroConfig(), "eagle", "method 'eagle'"),
        (HuginnConfig(), "ngram", "own coda entries"),
    ],
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


@pytest.mark.parametrize("name", ["data_parallel_backend", "distributed_executor_backend"])
def test_ray_is_refused_where_vllm_has_no_devices_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the package ray is not among what tests install."""
    asked = SimpleNamespace(**{"data_parallel_backend": "mp", "distributed_executor_backend": "mp", name: "ray"})
    with pytest.raises(ValueError, match=f"{name}='ray': vLLM's build for CPUs"):
        check_ray(asked)
    monkeypatch.setattr("loopcd.serving.vllm.start_up.current_platform", SimpleNamespace(ray_device_key="GPU"))
    check_ray(asked)


def test_another_version_of_vllm_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.1+cpu")
    with pytest.raises(ValueError, match=r"vLLM 0\.32\.x, and 0\.33\.1\+cpu is installed"):
        configured(folder)


def test_the_front_end_learns_what_is_served(folder: Path) -> None:
    configured(folder, additional_config={"loopcd": {"amateur_loops": [3], "default": {"strength": 0.5}}})
    served = LoopedStartUp.latest
    assert served is not None and served.amateur_loops == (3,) and served.num_loops == 4
    assert served.default is not None and served.default.strength == 0.5


def test_a_seed_is_refused_where_vllm_would_end_at_a_part_of_its_prompt(folder: Path) -> None:
    seeded = SamplingParams(temperature=0.7, seed=3)
    configured(folder, enable_chunked_prefill=True)
    with pytest.raises(ValueError, match="seed=3: not with chunked prefill on a CPU"):
        LoopCDProcessor.validate_params(seeded)
    LoopCDProcessor.validate_params(SamplingParams(temperature=0, seed=3))  # draws nothing
    configured(folder, enable_chunked_prefill=False)
    LoopCDProcessor.validate_params(seeded)


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ({"default": {"strength": 0.2}}, ["--additional-config", "{}"], "--additional-config takes the place of"),
        ({"amateur_loops": (1,)}, ["--additional-config.other=1"], "--additional-config takes the place of"),
        ({"num_loops": 3}, ["--hf-overrides", '{"max_position_embeddings": 64}'], "takes the place of --num-loops"),
    ],
)
def test_options_of_vllms_drop_none_of_ours(options: dict[str, Any], more: list[str], said: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=said):
        serve(EngineOptions(str(folder), **options), "127.0.0.1", 8000, more)


def test_the_public_checkpoints_configurations_need_no_remote_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    name = {"huginn_raven": "RavenForCausalLM", "ouro": "OuroForCausalLM"}[config["model_type"]]
    remote = {"AutoConfig": "raven_config.Config", "AutoModelForCausalLM": "modeling.Model"}
    configure(folder, architectures=[name], auto_map=remote)
    found = configured(folder)
    assert type(found.model_config.hf_config).__module__ == "loopcd.models.configs"
    assert found.model_config.architecture == name


@pytest.mark.parametrize("layers", ["llama", "olmo"])
def test_whose_layers_a_retrofitted_model_has_its_weights_tell(layers: str) -> None:
    found = configured(GOLDEN / "families" / f"retro_{layers}_tiny").model_config
    assert found.architecture == "RavenForCausalLM" and found.hf_config.layers_like == layers


def test_a_text_does_not_end_at_special_tokens_that_a_converter_left_in() -> None:
    folder = GOLDEN / "families" / "retro_llama_tiny"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] in HUGINN_TOKENS
    found = pickle.loads(pickle.dumps(configured(folder).model_config))  # as it goes to other processes
    assert not found.try_get_generation_config().keys() & {"eos_token_id", "bos_token_id", "pad_token_id"}
    kept = configured(GOLDEN / "families" / "nanbeige_tiny").model_config.try_get_generation_config()
    assert kept["eos_token_id"] == 91


def test_weights_of_another_family_or_none_are_refused(tmp_path: Path) -> None:
    huginn = save_model(tmp_path / "huginn", tiny_huginn())
    configure(huginn, rope_theta=500.0, init_values={"embed_scale": 1.0}, qk_bias=False)
    nanbeige = save_model(tmp_path / "nanbeige", tiny_nanbeige())
    rewrite(nanbeige, lambda weights: weights.update({"model.early_exit_gate.weight": torch.zeros(1, 32)}))
    empty = save_model(tmp_path / "empty", tiny_nanbeige())
    (empty / "model.safetensors").unlink()
    for folder, said in [
        (huginn, "its weights are those of Huginn"),
        (nanbeige, "its weights are those of Ouro"),
        (empty, "has no safetensors"),
    ]:
        with pytest.raises(ValueError, match=said):
            configured(folder)


def test_registering_again_changes_nothing() -> None:
    from vllm import ModelRegistry

    register()
    before = {name: ModelRegistry.models[name] for name in ARCHITECTURES}
    register()
    assert {name: ModelRegistry.models[name] for name in ARCHITECTURES} == before
