"""Laboratories with a tiny random model of each family."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from analysis.labs import Counting, laboratory
from loopcd.analysis.laboratory import Laboratory
from random_models import _models, model, one_thread, ouro, own_model
from tools import byte_tokenizer, save_model, tiny_huginn, tiny_ouro

__all__ = ["_models", "model", "one_thread", "ouro", "own_model"]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    made = {"huginn": tiny_huginn(3, block_size=512), "ouro": tiny_ouro(3, max_position_embeddings=512)}
    with torch.no_grad():
        for each in made.values():
            each.get_output_embeddings().weight.mul_(3)  # pyright: ignore; margins wide enough for hard tokens
    return {name: save_model(place / name, each) for name, each in made.items()}


@pytest.fixture
def lab(folders: dict[str, Path], shared_caches: dict[str, Path]) -> Laboratory:
    """Of one family: statistics begin at traces, which tests/tracing has for all. What only reads shares what is generated."""
    return laboratory(folders["huginn"], shared_caches["huginn"])


@pytest.fixture(params=["huginn", "ouro"])
def each_lab(request: pytest.FixtureRequest, folders: dict[str, Path], shared_caches: dict[str, Path]) -> Laboratory:
    """For what depends on the family: its loops, its preset, what is drawn."""
    return laboratory(folders[request.param], shared_caches[request.param])


@pytest.fixture(scope="session")
def shared_caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(f"cache-{name}") for name in ("huginn", "ouro")}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)
