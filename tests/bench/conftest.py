"""For tests of the benchmark: tiny models in place of the medium ones, and one tiny run that many tests read."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from loopcd.bench import decode, subjects
from loopcd.bench.parts import Settings, merged, run
from loopcd.bench.traffic import Stream
from tools import save_model, tiny_huginn, tiny_ouro

SIZES = {
    "huginn-medium": {"n_embd": 32, "n_heads": 4, "intermediate_size": 48, "mean_recurrence": 4},
    "ouro-medium": {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 2},
}


@pytest.fixture(scope="session", autouse=True)
def tiny() -> Iterator[None]:
    """The medium models become tiny, and the stream of matrices short."""
    patch = pytest.MonkeyPatch()
    for name, make in list(subjects.MEDIUM.items()):
        patch.setitem(subjects.MEDIUM, name, partial(_sized, make, SIZES[name]))
    patch.setattr(decode, "Stream", partial(Stream, megabytes=1, side=64))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    patch.undo()


def _sized(make: Any, size: dict[str, int], vocabulary: int = 64, **changes: Any) -> Any:
    return make(min(vocabulary, 128), **{**size, **changes})


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two tiny random models with a byte tokenizer."""
    root = tmp_path_factory.mktemp("models")
    models = {"huginn": tiny_huginn(block_size=1024), "ouro": tiny_ouro(max_position_embeddings=1024)}
    return [str(save_model(root / name, model)) for name, model in models.items()]


@pytest.fixture(scope="session")
def found(folders: list[str]) -> dict[str, Any]:
    """A run of every part that does not start processes."""
    small: dict[str, Any] = {"rounds": 1, "max_new_tokens": 4, "quick": True}
    most = run(Settings(what=("methods", "decode"), models=folders, batches=(1, 2), **small))
    return merged([run(Settings(what=("exact",), models=folders[:1], batches=(2,), **small)), most])


@pytest.fixture
def stored(found: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(found))
    return path
