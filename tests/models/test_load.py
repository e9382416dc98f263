"""`loopcd.load` and `from_pretrained`: what comes back is what was saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import loopcd
from loopcd.models import HuginnForCausalLM, LoopedModel, OuroForCausalLM
from loopcd.models.loading import find
from tools import (
    GOLDEN,
    MAKERS,
    Golden,
    byte_tokenizer,
    configure,
    logits_of,
    random_ids,
    refused,
    rewrite,
    save_model,
    tiny_huginn,
    tiny_ouro,
)

TIED = {"tie_embeddings": True, "tie_word_embeddings": True}
VARIANTS: dict[str, Callable[[], LoopedModel]] = {
    "huginn, untied": tiny_huginn,
    "huginn, tied": lambda: tiny_huginn(**TIED),
    "ouro, untied": tiny_ouro,
    "ouro, tied, grouped": lambda: tiny_ouro(tie_word_embeddings=True, num_key_value_heads=2, rope_theta=500.0),
    "hrm": MAKERS["hrm"],
}


# What comes back


@pytest.mark.parametrize("variant", VARIANTS)
def test_saving_and_loading_changes_nothing(tmp_path: Path, variant: str) -> None:
    model = VARIANTS[variant]()
    model.save_pretrained(tmp_path)
    ids = random_ids(2, 9)
    for again in (type(model).from_pretrained(tmp_path).eval(), loopcd.load(tmp_path)[0]):
        assert torch.equal(logits_of(again, ids), logits_of(model, ids))
        ignored = ("_name_or_path", "transformers_version", "dtype", "architectures")
        found, wanted = ({k: v for k, v in m.config.to_dict().items() if k not in ignored} for m in (again, model))
        assert found == wanted
        assert (again.lm_head.weight is again.get_input_embeddings().weight) == model.config.tie_word_embeddings
    if model.config.tie_word_embeddings:
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_a_golden_checkpoint_saved_again_holds_the_same_weights(tmp_path: Path, family: str) -> None:
    golden = Golden.read(family)
    golden.model.save_pretrained(tmp_path)
    before, after = load_file(golden.folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    before.pop("freqs_cis", None)  # computed, not stored
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("both", [False, True])
def test_an_untied_config_loads_with_either_or_both_switches(folder: Path, both: bool) -> None:
    """The public class cannot read both, so one is written; other checkpoints have them."""
    saved = json.loads((folder / "config.json").read_text())
    assert saved["tie_embeddings"] is False and "tie_word_embeddings" not in saved
    if both:
        configure(folder, tie_word_embeddings=False)
    model, _ = loopcd.load(folder)
    assert not torch.equal(model.get_parameter("lm_head.weight"), model.get_parameter("transformer.wte.weight"))


@pytest.mark.parametrize(("family", "kind"), [("huginn", HuginnForCausalLM), ("ouro", OuroForCausalLM)])
@pytest.mark.parametrize("auto_map", [False, True])
def test_the_auto_class_gives_ours_without_remote_code(tmp_path: Path, family: str, kind: type, auto_map: bool) -> None:
    model = MAKERS[family]()
    model.save_pretrained(tmp_path)
    if auto_map:
        remote = {"AutoConfig": "modeling_remote.RemoteConfig", "AutoModelForCausalLM": "modeling_remote.RemoteModel"}
        configure(tmp_path, auto_map=remote)
        (tmp_path / "modeling_remote.py").write_text("raise SystemExit('remote code was run')")
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is kind
    assert torch.equal(logits_of(again.eval(), random_ids(1, 5)), logits_of(model, random_ids(1, 5)))


def test_the_tokenizer_comes_along(folder: Path) -> None:
    model, tokenizer = loopcd.load(folder)
    assert tokenizer is not None and tokenizer.padding_side == "left"
    assert not model.training
    text = "Zwölf Bären, 12 🐻"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    batch = tokenizer(["a", "longer"], padding=True, return_tensors="pt")
    assert batch["attention_mask"].tolist()[0] == [0, 0, 0, 0, 0, 1]
    assert model.generate(**batch, max_new_tokens=3).shape == (2, 9)


def test_a_tokenizer_without_padding_pads_by_its_end(folder: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    _, again = loopcd.load(folder)
    assert again is not None and again.pad_token == again.eos_token


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    tiny_ouro().save_pretrained(tmp_path)
    assert loopcd.load(str(tmp_path))[1] is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "torch.bfloat16", torch.bfloat16])
def test_the_dtype_may_be_chosen(folder: Path, dtype: Any) -> None:
    model, _ = loopcd.load(folder, dtype=dtype)
    assert str(model.dtype) == f"torch.{str(dtype).removeprefix('torch.')}"
    assert logits_of(model, random_ids(1, 3)).isfinite().all()


def test_the_dtype_is_that_of_the_checkpoint_otherwise(folder: Path) -> None:
    assert loopcd.load(folder)[0].dtype == torch.float32
    tiny_huginn().bfloat16().save_pretrained(folder)
    assert loopcd.load(folder)[0].dtype == torch.bfloat16


def test_loops_and_attention_may_be_chosen(folder: Path) -> None:
    ids = random_ids(1, 4)
    model, _ = loopcd.load(folder)
    for loops in (2, 9):
        other, _ = loopcd.load(folder, num_loops=loops, attn_implementation="eager")
        assert other.num_loops == loops and other.config._attn_implementation == "eager"
        torch.testing.assert_close(logits_of(other, ids), logits_of(model, ids, num_loops=loops), rtol=0, atol=2e-4)


def test_weights_in_several_files(tmp_path: Path) -> None:
    model = tiny_huginn()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(logits_of(loopcd.load(tmp_path)[0], random_ids(1, 4)), logits_of(model, random_ids(1, 4)))
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=f"lacks {lost.name}, which model.safetensors.index.json names"):
        loopcd.load(tmp_path)


def test_the_stored_rotary_table_is_not_used(tmp_path: Path) -> None:
    """A checkpoint saved in bfloat16 has it rounded, so it is computed."""
    golden = Golden.read("huginn")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((golden.folder / name).read_bytes())
    rewrite(tmp_path, lambda weights: weights["freqs_cis"].zero_())
    again, _ = loopcd.load(tmp_path)
    assert torch.equal(logits_of(again, golden.ids("s1")), logits_of(golden.model, golden.ids("s1")))


def test_loading_says_nothing(folder: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    capfd.readouterr()  # saving has a progress bar
    loopcd.load(folder)
    rewrite(folder, lambda weights: weights.pop("lm_head.weight"))
    refused(folder, "lm_head.weight")  # the sentence alone, without transformers' table
    assert capfd.readouterr() == ("", "") and caplog.text == ""
    save_model(folder, tiny_huginn())
    capfd.readouterr()
    AutoModelForCausalLM.from_pretrained(folder)  # transformers' own settings are left as they were
    assert "Loading weights" in capfd.readouterr().err


def test_a_name_finds_a_folder(folder: Path) -> None:
    assert find(folder) == find(str(folder)) == folder
    assert find(GOLDEN / "ouro_tiny") == GOLDEN / "ouro_tiny"


def test_a_hub_model_can_be_had_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def download(name: str, allow_patterns: list[str], **_: Any) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("loopcd.models.checkpoint.snapshot_download", download)
    assert find("owner/name") == find("owner/name", weights=False) == tmp_path
    assert "*.safetensors" in asked[0] and "*.safetensors" not in asked[1] and "*.json" in asked[1]
