"""The folder of a run: the state to continue from, the log, and the finished model.

state.pt           model, optimisers and position; replaced as a whole, so a kill leaves the last good one
log.jsonl          one line for each report
run.json           recipe, seed, versions
model/             the model and its tokenizer as transformers saves them
snapshots/         the same after fewer tokens, where asked for
"""

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from loopcd.models import LoopedModel
from loopcd.tracing import writing
from loopcd.training.optimisers import Optimisers


@dataclass(frozen=True)
class Position:
    """How far a run is. `pool` and `batch` say where in the text; `equations` is the share the pool was made with."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    pool: int = 0
    batch: int = 0
    equations: float = 0.0


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path, self.model = path, path / "model"
        self.state_file, self.log_file, self.run_file = path / "state.pt", path / "log.jsonl", path / "run.json"

    def snapshot_at(self, tokens: int) -> Path:
        return self.path / "snapshots" / f"tokens-{tokens:09d}"

    def save_state(self, model: LoopedModel, optimisers: Optimisers, position: Position) -> None:
        state = {"model": model.state_dict(), "optimisers": optimisers.state(), "position": asdict(position)}
        with writing.replacing(self.state_file) as file:
            torch.save(state, file)

    def load_state(self, model: LoopedModel, optimisers: Optimisers) -> Position:
        try:
            state = torch.load(self.state_file, weights_only=True)
            model.load_state_dict(state["model"])
            optimisers.restore(state["optimisers"])
            return Position(**state["position"])
        except Exception as error:  # torch and pickle raise many kinds
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"{self.state_file} cannot be gone on with ({reason}): choose another folder") from error

    def append_log(self, record: dict[str, Any]) -> None:
        writing.append(self.log_file, (json.dumps(record) + "\n").encode())

    def cut_log(self, tokens: int) -> None:
        """Forget what a run that was killed had logged after the state that is gone on from, and half a line at the end."""
        if not self.log_file.exists():
            return
        kept = 0
        for number, line in enumerate(writing.read_plain(self.log_file).splitlines(keepends=True), start=1):
            if not line.endswith(b"\n") or _record(line, f"{self.log_file}, line {number}").get("tokens", 0) > tokens:
                break
            kept += len(line)
        writing.cut(self.log_file, kept)

    def read_log(self) -> list[dict[str, Any]]:
        return read_records(self.log_file)

    def write_run(self, record: dict[str, Any]) -> None:
        libraries = {"torch": torch.__version__, "transformers": transformers.__version__}
        told = {**record, "versions": {"python": platform.python_version(), **libraries}}
        writing.write_whole(self.run_file, json.dumps(told, indent=2, default=str) + "\n")

    def read_run(self) -> dict[str, Any]:
        return read_record(self.run_file)

    def check_run(self, record: dict[str, Any]) -> None:
        """Refuse to go on with other settings than the run has: it would be neither the one run nor the other."""
        for name, value, had in _differences(json.loads(json.dumps(record, default=str)), self.read_run()):
            told = f"the run in {self.path} has {shortened(had)}"
            raise ValueError(f"{name} {value!r}: {told}; resume it with that, or choose another folder")

    def save_model(self, model: LoopedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
        """Save both into `folder`, which is one of the run's."""
        with writing.filling(folder, self.path) as made:
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            for file in made.iterdir():
                file.chmod(0o644)  # safetensors writes files that only their owner can read


def read_record(file: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    return _record(file.read_text(), str(file))


def read_records(file: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file's lines; none where there is no file."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [_record(line, f"{file}, line {number}") for number, line in enumerate(lines, start=1)]


def _differences(record: dict[str, Any], has: Any, inside: str = "") -> Iterator[tuple[str, Any, Any]]:
    """What is set otherwise: its way down the record, as recipe.optimiser.clip, its value, and the other that `has` holds."""
    for name, value in record.items():
        if name in ("description", "transformers_version") or not isinstance(has, dict) or name not in has:
            continue
        if isinstance(value, dict):
            yield from _differences(value, has[name], f"{inside}{name}.")
        elif has[name] != value:
            yield inside + name, value, has[name]


def _record(text: str | bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place} is damaged: it is no JSON object")
    return found
