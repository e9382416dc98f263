"""How an engine is started, without starting one."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from loopcd.cli import main
from loopcd.serving.vllm.options import GRACE, EngineOptions
from loopcd.serving.vllm.server import as_flags
from tools import GOLDEN, configure, save_model, tiny_hrm, tiny_huginn, tiny_ouro, tiny_retrofit


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(save_model(tmp_path / "model", tiny_huginn()))


def test_only_what_was_asked_for_is_handed_to_vllm(folder: str, tmp_path: Path) -> None:
    ouro = str(save_model(tmp_path / "ouro", tiny_ouro()))
    arguments = EngineOptions(ouro).resolve().arguments(cpu=False)
    assert arguments == {"model": ouro, "served_model_name": ouro, "dtype": "float32", "shutdown_timeout": 2 * GRACE}
    assert EngineOptions(ouro).resolve().arguments(cpu=True)["enable_chunked_prefill"] is False
    plain = EngineOptions(folder, amateur_loops=()).resolve().arguments(cpu=False)
    assert set(plain) == {"model", "served_model_name", "dtype", "shutdown_timeout", "additional_config"}


def test_prompts_are_read_whole_where_an_amateur_reads_them_through_a_coda(folder: str) -> None:
    arguments = EngineOptions(folder).resolve().arguments(cpu=False)
    assert arguments["enable_prefix_caching"] is arguments["enable_chunked_prefill"] is False
    assert as_flags(arguments)[-2:] == ["--no-enable-prefix-caching", "--no-enable-chunked-prefill"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_where_the_configuration_names_no_dtype_the_weights_do(dtype: str, tmp_path: Path) -> None:
    """vLLM would take bfloat16 for float32."""
    folder = save_model(tmp_path, tiny_ouro().to(getattr(torch, dtype)))
    configure(folder, dtype=None)
    assert EngineOptions(str(folder)).resolve().dtype == dtype


def test_everything_that_was_asked_for_is_handed_to_vllm(folder: str) -> None:
    options = EngineOptions(
        folder,
        dtype="bfloat16",
        num_loops=3,
        amateur_loops=(2, 1),
        default={"strength": 0.5},
        tensor_parallel=2,
        data_parallel=3,
    )
    engine = options.resolve()
    assert engine.served.num_loops == 3 and engine.served.amateur_loops == (1, 2)
    arguments = engine.arguments(cpu=True)
    assert 0 < arguments.pop("kv_cache_memory_bytes") <= 4 << 30
    assert arguments.pop("enforce_eager")  # a tiny model on a CPU
    assert arguments == {
        "model": folder,
        "served_model_name": folder,
        "dtype": "bfloat16",
        "additional_config": {"loopcd": {"amateur_loops": [2, 1], "default": {"strength": 0.5}}},
        "hf_overrides": {"mean_recurrence": 3},
        "tensor_parallel_size": 2,
        "data_parallel_size": 3,
        "shutdown_timeout": 2 * GRACE,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
    }
    flags = as_flags({"enforce_eager": True, **arguments})
    assert flags[:2] == ["--enforce-eager", "--model"]
    assert flags[flags.index("--additional-config") + 1] == json.dumps(arguments["additional_config"])
    assert flags[flags.index("--tensor-parallel-size") + 1] == "2"


def test_each_family_keeps_its_loops_in_a_field_of_its_own(tmp_path: Path) -> None:
    for folder, field in [
        (save_model(tmp_path, tiny_ouro()), "total_ut_steps"),
        (GOLDEN / "families" / "nanbeige_tiny", "num_loops"),
        (GOLDEN / "families" / "retro_llama_tiny", "mean_recurrence"),
    ]:
        engine = EngineOptions(str(folder), num_loops=3).resolve()
        assert engine.served.num_loops == 3 and engine.arguments(cpu=False)["hf_overrides"] == {field: 3}


@pytest.mark.parametrize("layers", ["llama", "olmo"])
def test_whose_layers_a_retrofitted_model_has_its_weights_tell(layers: str) -> None:
    folder = GOLDEN / "families" / f"retro_{layers}_tiny"
    assert "layers_like" not in json.loads((folder / "config.json").read_text())
    engine = EngineOptions(str(folder)).resolve()
    assert engine.config.layers_like == layers
    assert engine.served.amateur_loops == (1,)  # a quarter of six
    assert engine.arguments(cpu=False)["enable_chunked_prefill"] is False  # it has a coda


def test_a_checkpoint_is_not_served_as_one_of_the_other_family(tmp_path: Path) -> None:
    huginn, retrofit = save_model(tmp_path / "huginn", tiny_huginn()), save_model(tmp_path / "retrofit", tiny_retrofit())
    configure(huginn, rope_theta=500.0, init_values={"embed_scale": 1.0}, qk_bias=False)
    configure(retrofit, rope_theta=None, rope_scaling=None, qk_bias=True)
    for folder, family in [(huginn, "Huginn"), (retrofit, "a retrofitted Llama")]:
        with pytest.raises(ValueError, match=f"its weights are those of {family}"):
            EngineOptions(str(folder)).resolve()


def test_what_cannot_be_served_is_refused_before_vllm_is_looked_for(tmp_path: Path, folder: str) -> None:
    hrm, llama = str(save_model(tmp_path / "hrm", tiny_hrm())), str(save_model(tmp_path / "llama", tiny_ouro()))
    configure(Path(llama), model_type="llama")
    for options, said in [
        ({"name": hrm}, "is HRM-Text: with vLLM, Huginn, the retrofitted models, Ouro and Nanbeige can be served"),
        ({"name": str(GOLDEN / "families" / "parcae_tiny")}, "is Parcae: with vLLM, Huginn,"),
        ({"name": llama}, "has model type 'llama': with vLLM, Huginn,"),
        ({"name": "no-such-model"}, "there is no model 'no-such-model'"),
        ({"name": folder, "num_loops": 0}, "num_loops=0"),
        ({"name": folder, "dtype": "int8"}, "dtype='int8'"),
        ({"name": folder, "amateur_loops": (9,)}, "amateur_loops=[9]"),
        ({"name": folder, "tensor_parallel": 0}, "--tensor-parallel 0"),
        ({"name": folder, "data_parallel": -1}, "--data-parallel -1"),
    ]:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            EngineOptions(**options).resolve()  # pyright: ignore[reportArgumentType]
        assert said in str(caught.value)


def test_of_what_cannot_be_served_no_weights_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hrm, asked = save_model(tmp_path, tiny_hrm()), list[str]()

    def download(name: str, allow_patterns: list[str], **_: object) -> str:
        asked.extend(allow_patterns)
        return str(hrm)

    monkeypatch.setattr("loopcd.models.checkpoint.snapshot_download", download)
    with pytest.raises(ValueError, match="sapientinc/HRM-Text-1B is HRM-Text"):
        EngineOptions("sapientinc/HRM-Text-1B").resolve()
    assert "*.json" in asked and "*.safetensors" not in asked


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["serve"], 2, "Missing argument 'MODEL'"),
        (["serve", "no-such-model"], 1, "there is no model"),
        (["serve", "FOLDER", "--amateur-loops", "a"], 2, "--amateur-loops 'a': whole numbers"),
        (["serve", "FOLDER", "--amateur-loops", "9"], 1, "amateur_loops=[9]"),
        (["serve", "FOLDER", "--strength", "0.3"], 2, "--strength is for --default-method loopcd"),
        (["serve", "FOLDER", "--default-method", "loopcd", "--strength", "-1"], 1, "loopcd.default.strength=-1.0"),
        (["eval", "--tensor-parallel", "2"], 2, "--tensor-parallel is for --engine vllm"),
        (["eval", "--engine", "vllm", "--limit", "1", "--seeds", "0"], 1, "--seeds: in vLLM"),
        (["eval", "--engine", "vllm", "--limit", "1", "--device", "cpu"], 1, "--device cpu"),
        (["eval", "--engine", "vllm", "--limit", "1", "--allow-pickle"], 1, "--allow-pickle: vLLM is given safetensors only"),
        (["eval", "--engine", "vllm", "--limit", "1", "--model", "PARCAE"], 1, "is Parcae: with vLLM, Huginn,"),
        (["serve", "PARCAE"], 1, "is Parcae: with vLLM, Huginn,"),
    ],
)
def test_bad_usage_is_told_in_one_sentence(arguments: list[str], status: int, said: str, folder: str) -> None:
    named = {"FOLDER": folder, "PARCAE": str(GOLDEN / "families" / "parcae_tiny")}
    made = CliRunner().invoke(main, [named.get(each, each) for each in arguments])
    assert made.exit_code == status, made.output
    assert said in made.output


def test_no_code_of_a_folder_is_run(folder: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    config = Path(folder) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "auto_map": {"AutoConfig": "theirs.TheirConfig"}}))
    (Path(folder) / "theirs.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass TheirConfig: pass\n")
    assert EngineOptions(folder).resolve().config.model_type == "huginn_raven"
    assert not ran.exists()
