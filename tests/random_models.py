"""Fixtures that the tests of models and of decoding share: one thread, the fastest for tiny models, and random models."""

from collections.abc import Iterator

import pytest
import torch

from loopcd.models import LoopedModel
from tools import MAKERS

__all__ = ["_models", "huginn", "model", "one_thread", "ouro", "own_model"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def _models() -> dict[str, LoopedModel]:
    return {name: make() for name, make in MAKERS.items()}


@pytest.fixture(params=["huginn", "ouro", "hrm"])
def model(request: pytest.FixtureRequest, _models: dict[str, LoopedModel]) -> LoopedModel:
    """A tiny random model of each family; shared, so tests leave it as it is."""
    return _models[request.param]


@pytest.fixture(params=["huginn", "ouro"])
def own_model(request: pytest.FixtureRequest, _models: dict[str, LoopedModel]) -> LoopedModel:
    """As `model`, of the two families that loopcd itself implements."""
    return _models[request.param]


@pytest.fixture
def huginn(_models: dict[str, LoopedModel]) -> LoopedModel:
    return _models["huginn"]


@pytest.fixture
def ouro(_models: dict[str, LoopedModel]) -> LoopedModel:
    return _models["ouro"]
