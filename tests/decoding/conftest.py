from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from decoding.slow import Slow
from loopcd.models import LoopedModel
from random_models import *  # noqa: F403 (fixtures)
from tools import byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def slow_of() -> Callable[[LoopedModel], Slow]:
    """One slow reading a model, so that texts which tests share are read once."""
    known: dict[int, Slow] = {}
    return lambda model: known.setdefault(id(model), Slow(model))


@pytest.fixture
def advances(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoopedModel], list[int]]:
    """The rows, from its call on, of every loop that a model really runs."""

    def count(model: LoopedModel) -> list[int]:
        rows: list[int] = []
        advance = type(model).advance

        def counted(self: LoopedModel, state: Any) -> Any:
            rows.append(state.hidden.shape[0])
            return advance(self, state)

        monkeypatch.setattr(type(model), "advance", counted)
        return rows

    return count
