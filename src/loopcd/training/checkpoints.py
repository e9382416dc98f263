"""The folder of a run: the state to continue from, the log, and the finished model.

state.pt           model, optimisers and position; replaced as a whole, so a kill leaves the last good one
log.jsonl          one line for each report
run.json           recipe, seed, versions
model/             the model and its tokenizer as transformers saves them
snapshots/         the same after fewer tokens, where asked for
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from loopcd.models import LoopedModel
from loopcd.training.optimisers import Optimisers


@dataclass
class Position:
    """How far a run is. `pool` and `batch` say where in the text; `equations` is the share the pool was made with."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    pool: int = 0
    batch: int = 0
    equations: float = 0.0


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def state_file(self) -> Path:
        return self.path / "state.pt"

    @property
    def log_file(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def snapshot_at(self, tokens: int) -> Path:
        return self.path / "snapshots" / f"tokens-{tokens:09d}"

    def save_state(self, model: LoopedModel, optimisers: Optimisers, position: Position) -> None:
        state = {"model": model.state_dict(), "optimisers": optimisers.state(), "position": asdict(position)}
        unfinished = self.state_file.with_suffix(".tmp")
        torch.save(state, unfinished)
        unfinished.replace(self.state_file)

    def load_state(self, model: LoopedModel, optimisers: Optimisers) -> Position:
        state = torch.load(self.state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimisers.restore(state["optimisers"])
        return Position(**state["position"])

    def append_log(self, record: dict[str, Any]) -> None:
        with self.log_file.open("a") as log:
            log.write(json.dumps(record) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        if not self.log_file.exists():
            return []
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]

    def write_run(self, record: dict[str, Any]) -> None:
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        versions["transformers"] = transformers.__version__
        (self.path / "run.json").write_text(json.dumps({**record, "versions": versions}, indent=2, default=str) + "\n")

    def read_run(self) -> dict[str, Any]:
        return json.loads((self.path / "run.json").read_text())


def export(model: LoopedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files that only their owner can read
