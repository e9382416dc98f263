"""int8 weights: what is rounded and how far, the same stages, methods and drafts on them, and what they take."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import loopcd
from loopcd.models import int8, loading
from loopcd.models.catalogue import describe
from loopcd.models.int8 import Int8Embedding, Int8Linear, int8_bytes, rounded, to_int8
from tools import LATER, MAKERS, byte_tokenizer, logits_of, random_ids, refused, save_model, tiny_huginn, tiny_ouro

FAMILIES = {**MAKERS, **LATER}
PROMPTS = ["Hello", "A longer prompt, with more in it", "x"]


def quantized(name: str, **changes: Any) -> Any:
    model = FAMILIES[name](**changes)
    to_int8(model)
    return model


def test_a_row_is_rounded_to_half_a_step_of_its_own_scale() -> None:
    weight = torch.randn(64, 48) * torch.logspace(-3, 2, 64)[:, None]
    weight[5] = 0
    q, scales = rounded(weight)
    error = (q.float() * scales.float()[:, None] - weight).abs()
    assert q.dtype == torch.int8 and scales.dtype == torch.bfloat16
    # half a step; where bfloat16 rounded the scale down, the largest weight is cut by a little more
    assert (error <= scales.float()[:, None] * 0.51).all() and error[5].max() == 0


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
def test_few_rows_and_many_are_the_same_product(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Int8Linear(*rounded(torch.randn(96, 64)), torch.randn(96).bfloat16())
    x = torch.randn(1, rows, 64).bfloat16()
    wanted = x.double() @ (layer.weight.double() * layer.scales.double()[:, None]).T + layer.bias.double()  # pyright: ignore
    for units in (True, False):
        monkeypatch.setattr(int8, "has_bfloat16", lambda units=units: units)
        assert (layer(x).double() - wanted).abs().max() < 0.02 * wanted.abs().max()
    monkeypatch.setattr(int8, "WIDENED", 1000)  # in pieces
    assert (layer(x).double() - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_method_and_draft(name: str) -> None:
    plain, model = FAMILIES[name](), quantized(name)
    assert any(isinstance(module, Int8Linear) for module in model.modules())
    assert model.dtype == torch.bfloat16 and model.quantized == "int8"
    ids = random_ids(2, 12)
    wanted, found = logits_of(plain, ids), logits_of(model, ids).float()
    assert ((found - wanted).pow(2).mean() / wanted.pow(2).mean()).sqrt() < 0.1
    for method in (loopcd.Greedy(), loopcd.LoopCD(), loopcd.LoopCD(exit=loopcd.EarlyExit(min_loops=3))):
        made = loopcd.generate(model, byte_tokenizer(), PROMPTS, method, max_new_tokens=6)
        assert all(each.token_ids for each in made)  # pyright: ignore[reportGeneralTypeIssues]
    drafted = loopcd.Greedy(draft=loopcd.SelfDraft(loops=1, length=3, fallback=False))
    assert loopcd.generate(model, byte_tokenizer(), PROMPTS, drafted, max_new_tokens=6)


def test_gradients_go_through_few_rows_as_through_many() -> None:
    model, ids = quantized("ouro"), random_ids(1, 12)
    losses = [model(input_ids=ids[:, :time], labels=ids[:, :time]).loss for time in (4, 12)]
    for loss in losses:
        model.zero_grad()
        loss.backward()
        assert model.model.norm.weight.grad.abs().max() > 0


def test_some_rows_of_the_head_are_those_of_the_whole() -> None:
    model = quantized("huginn")
    hidden, tokens = torch.randn(2, 3, 32).bfloat16(), torch.randint(0, 259, (2, 3, 5))
    whole = model.head(hidden).gather(-1, tokens)
    assert (model.head(hidden, tokens) - whole).abs().max() <= 0.02 * whole.abs().max()


def test_tied_embeddings_are_kept_once() -> None:
    model = tiny_huginn(tie_embeddings=True, tie_word_embeddings=True)
    to_int8(model)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding, Int8Embedding) and isinstance(head, Int8Linear)
    assert embedding.weight.data_ptr() == head.weight.data_ptr()
    with pytest.raises(ValueError, match="token id -1"):
        model(torch.tensor([[3, -1]]))


def test_load_and_what_it_refuses(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", tiny_ouro())
    model, _ = loopcd.load(folder, device="cpu", quantize="int8")
    assert model.quantized == "int8" and not any(type(each) is nn.Linear and each.out_features > 32 for each in model.modules())
    with pytest.raises(ValueError, match="is not saved"):
        model.save_pretrained(tmp_path / "again")
    refused(folder, "quantize='int4'", "int8", quantize="int4")
    refused(folder, "dtype='float32'", "bfloat16", quantize="int8", dtype="float32")


def test_memory_as_it_is_told() -> None:
    told = int8_bytes(tiny_ouro())
    model = quantized("ouro")
    kept = {each.data_ptr(): each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers())}
    assert told == sum(kept.values())
    plain, small = (describe(["tiny-ouro"], 64, None, "bfloat16", each)[0] for each in (None, "int8"))
    assert small.weight_bytes < 0.55 * plain.weight_bytes and small.cache_bytes == plain.cache_bytes


def test_dtype_of_a_processor_without_bfloat16_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_model(tmp_path / "model", tiny_ouro().bfloat16())
    size = sum(weight.numel() for weight in tiny_ouro().parameters())
    monkeypatch.setattr(loading, "has_bfloat16", lambda: False)
    assert loopcd.load(folder, device="cpu")[0].dtype == torch.float32
    assert len(caplog.messages) == 1 and "loaded in float32" in caplog.messages[0] and "dtype='bfloat16'" in caplog.messages[0]
    caplog.clear()
    assert loopcd.load(folder, device="cpu", dtype="bfloat16")[0].dtype == torch.bfloat16
    monkeypatch.setattr(loading, "free_bytes", lambda device: 4 * size)  # room for bfloat16, not for float32
    assert loopcd.load(folder, device="cpu")[0].dtype == torch.bfloat16
    monkeypatch.setattr(loading, "has_bfloat16", lambda: True)
    assert loopcd.load(folder, device="cpu")[0].dtype == torch.bfloat16
    assert not caplog.messages


def test_bfloat16_units_are_told() -> None:
    assert isinstance(int8.has_bfloat16(), bool)
