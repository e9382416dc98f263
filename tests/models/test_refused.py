"""What cannot be loaded is refused with one sentence: what was wrong, where, and what would be right."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import loopcd
from loopcd.models import HuginnForCausalLM
from tools import configure, refused, rewrite, save_model, tiny_huginn, tiny_ouro


def test_an_unknown_name_is_told_what_there_is() -> None:
    refused("tiny-hugin", "'tiny-hugin' (do you mean tiny-huginn", "tiny-early", "OWNER/NAME", "`loopcd models`")
    refused("no-one/no-model", "'no-one/no-model' is no folder here", "hub")
    refused(3, "3 names no model")  # pyright: ignore[reportArgumentType]
    refused("./not/there", "'./not/there'", "a folder")


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    refused(folder / "config.json", "config.json is a file", "folder")


def test_a_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, str(folder), "no config.json")


@pytest.mark.parametrize(("text", "said"), [("{", "is not JSON"), ("[1]", "holds a list"), ("\xff", "is not JSON")])
def test_a_config_that_is_none(folder: Path, text: str, said: str) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    refused(folder, "config.json", said)


def test_a_wrong_model_type(folder: Path) -> None:
    configure(folder, model_type="llama")
    refused(folder, str(folder), "'llama'", "huginn_raven, ouro, hrm_text")
    (folder / "config.json").write_text("{}")
    refused(folder, "None", "huginn_raven, ouro, hrm_text")


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, str(folder), "has no weights", "model.safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "model.ckpt"])
def test_pickled_weights_are_refused_with_the_way_out(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(tiny_huginn().state_dict(), folder / name)
    refused(folder, name, "safetensors only", "Convert", "safetensors.torch.save_file")
    for auto in (AutoModelForCausalLM, HuginnForCausalLM):
        with pytest.raises(ValueError, match=rf"{name}.* safetensors only.*save_file"):
            auto.from_pretrained(folder)


def test_asking_for_pickled_weights_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="use_safetensors=False: loopcd reads safetensors only"):
        HuginnForCausalLM.from_pretrained(folder, use_safetensors=False)


@pytest.mark.parametrize("keep", [0, 4, 100, -1, -1000])
def test_a_truncated_file(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "model.safetensors", "truncated or corrupt")


def test_a_file_of_garbage(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (b"\x00" * 5000, b"not a model " * 500, whole[:8] + b"}" + whole[9:], b"\xff" * 8 + whole[8:]):
        path.write_bytes(damaged)
        refused(folder, "model.safetensors", "truncated or corrupt")


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}', "[]"])
def test_an_index_that_is_none(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    refused(folder, "model.safetensors.index.json", "not an index of weights")


def test_missing_weights_are_named(folder: Path) -> None:
    rewrite(folder, lambda weights: weights.pop("transformer.core_block.1.mlp.fc.weight"))
    refused(folder, str(folder), "lacks weights: transformer.core_block.1.mlp.fc.weight")


def test_unexpected_weights_are_named(folder: Path) -> None:
    rewrite(folder, lambda weights: weights.update({"transformer.extra.weight": torch.zeros(3)}))
    refused(folder, str(folder), "has unexpected weights: transformer.extra.weight")


def test_many_missing_weights_are_counted(folder: Path) -> None:
    def only_the_core(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if "core_block" in name]:
            del weights[name]

    rewrite(folder, only_the_core)
    refused(folder, "lacks weights: transformer.core_block.0.attn.", "and 10 more")


def test_weights_of_another_shape_are_named(folder: Path) -> None:
    rewrite(folder, lambda weights: weights.update({"transformer.adapter.weight": torch.zeros(3, 3)}))
    refused(folder, str(folder), "misfits weights: transformer.adapter.weight")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_named(folder: Path, value: float) -> None:
    rewrite(folder, lambda weights: weights["transformer.coda.0.norm_2.weight"][3:4].fill_(value))
    refused(folder, str(folder), "NaN or infinite values in transformer.coda.0.norm_2.weight")


@pytest.mark.parametrize("loops", [0, -1, 2.5, True, "4"])
def test_a_wrong_number_of_loops(folder: Path, loops: Any) -> None:
    refused(folder, f"num_loops={loops!r}", "at least 1", num_loops=loops)


@pytest.mark.parametrize("dtype", ["int8", "float", torch.int8, torch.float64, 16])
def test_an_unsupported_dtype(folder: Path, dtype: Any) -> None:
    refused(folder, f"dtype={str(dtype)!r}", "float32, bfloat16, float16", dtype=dtype)


@pytest.mark.parametrize("device", ["nonsense", "cpu:x", "cuda:99"])
def test_a_device_that_there_is_not(folder: Path, device: str) -> None:
    refused(folder, f"device={device!r}", "cannot be used here", "cpu", device=device)


def test_cuda_on_a_machine_without_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: (_ for _ in ()).throw(RuntimeError("no CUDA here")))
    refused(folder, "device='cuda'", "available: cpu)", device="cuda")


def test_weights_that_do_not_fit_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopcd.models.loading.free_bytes", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"the weights of .*model take 0\.\d+ MB, but 0\.00 MB are free on cpu"):
        loopcd.load(folder)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"n_embd": "abc"}, "'n_embd' expected int, got str"),
        ({"n_heads": 0}, "n_embd=32 does not divide into n_heads=0 heads"),
        ({"num_key_value_heads": 3}, "n_heads=4 is no multiple of num_key_value_heads=3"),
        ({"mean_recurrence": 0}, "mean_recurrence=0: at least one loop"),
        ({"mean_recurrence": 2.5}, "'mean_recurrence' expected int, got float"),
        ({"dtype": "nonsense"}, "nonsense"),
    ],
    ids=str,
)
def test_a_config_field_that_cannot_be(folder: Path, field: dict[str, Any], said: str) -> None:
    configure(folder, **field)
    refused(folder, str(folder / "config.json"), said)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"num_attention_heads": 0}, "hidden_size=32 does not divide into num_attention_heads=0 heads"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ({"hidden_size": 36, "head_dim": None}, "hidden_size=36 gives num_attention_heads=4 heads of odd size 9"),
        ({"total_ut_steps": -1}, "total_ut_steps=-1: at least one loop"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
    ],
    ids=str,
)
def test_an_ouro_config_field_that_cannot_be(tmp_path: Path, field: dict[str, Any], said: str) -> None:
    configure(save_model(tmp_path, tiny_ouro()), **field)
    refused(tmp_path, str(tmp_path / "config.json"), said)


def test_a_config_of_more_layers_than_the_weights(folder: Path) -> None:
    configure(folder, n_layers_in_recurrent_block=3)
    refused(folder, "lacks weights: transformer.core_block.2.")


def test_a_tokenizer_that_is_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{garbage")
    refused(folder, f"the tokenizer in {folder} cannot be read")


def test_an_unknown_attention(folder: Path) -> None:
    refused(folder, "nonsense", "eager", attn_implementation="nonsense")
