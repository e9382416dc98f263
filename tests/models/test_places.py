"""Where a model is put, and what `load` hands on to transformers and the hub."""

from pathlib import Path
from typing import Any

import pytest
import torch

import loopcd
from loopcd.models import OuroForCausalLM
from loopcd.models.loading import checked_device
from tools import configure, logits_of, random_ids, refused, save_model, tiny_ouro


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", tiny_ouro())


def test_weights_are_counted_as_they_will_be_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = sum(weight.numel() * 4 for weight in tiny_ouro().parameters())
    monkeypatch.setattr("loopcd.models.loading.free_bytes", lambda device: stored // 2)
    assert loopcd.load(folder, dtype="bfloat16")[0].dtype == torch.bfloat16
    with pytest.raises(MemoryError, match="the weights of"):
        loopcd.load(folder, dtype="float32")
    with pytest.raises(MemoryError, match="the weights of"):
        loopcd.load(folder)
    configure(folder, dtype="bfloat16")  # the checkpoint's own, though it is stored in float32
    assert loopcd.load(folder)[0].dtype == torch.bfloat16


def test_a_device_map(folder: Path) -> None:
    model, _ = loopcd.load(folder, device_map={"": "cpu"})
    assert torch.equal(logits_of(model, random_ids(1, 5)), logits_of(tiny_ouro(), random_ids(1, 5)))
    refused(folder, "device='cpu' and device_map='auto': one of the two", device="cpu", device_map="auto")


def test_what_transformers_gets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopcd.load(folder, attn_implementation="eager")[0].config._attn_implementation == "eager"
    given: dict[str, Any] = {}

    def noted(_: Any, **options: Any) -> Any:
        given.update(options)
        raise RuntimeError("enough")

    monkeypatch.setattr(OuroForCausalLM, "from_pretrained", noted)
    refused(folder, "enough", quantization_config="four bits", device_map="auto", dtype="float16")
    assert (given["quantization_config"], given["device_map"], given["dtype"]) == ("four bits", "auto", torch.float16)


def test_what_the_hub_gets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("loopcd.models.checkpoint.snapshot_download", download)
    loopcd.load("owner/name", revision="v2", token="secret")
    assert (asked["name"], asked["revision"], asked["token"]) == ("owner/name", "v2", "secret")


@pytest.mark.parametrize(
    ("cuda", "mps", "taken"), [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_the_device_that_is_taken(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, taken: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert checked_device(None).type == taken
