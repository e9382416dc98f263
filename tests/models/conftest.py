from pathlib import Path

import pytest

from random_models import *  # noqa: F403 (fixtures)
from tools import save_model, tiny_huginn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved Huginn with a tokenizer, which a test may damage."""
    return save_model(tmp_path / "model", tiny_huginn())
