"""What is checked about a checkpoint before and after its weights are read.

Each finding is one sentence that says what was wrong, where, and what would be right.
"""

import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_HOW_TO_CONVERT = (
    "Convert it once, where you trust the file: state = torch.load(FILE, weights_only=True); "
    "safetensors.torch.save_file(state, 'model.safetensors')"
)


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no config.json: a model folder holds config.json and {WEIGHTS}")
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}, not the fields of a configuration")
    return config


def check_config(kind: Any, folder: Path) -> None:
    """A field of the wrong type or value is found before a model is built."""
    try:
        kind.from_pretrained(folder)
    except (StrictDataclassError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be used: {' '.join(str(error).split())}") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the checkpoint; anything else is refused."""
    if (folder / INDEX).is_file():
        try:
            names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{folder / INDEX} is not an index of weights: {error!r}") from error
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} lacks {', '.join(missing)}, which {INDEX} names")
        return [folder / name for name in names]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if others:
        raise ValueError(
            f"{folder} has weights only as {', '.join(others)}: loopcd reads safetensors only, because the others can run "
            f"code when they are opened. {_HOW_TO_CONVERT}"
        )
    raise ValueError(f"{folder} has no weights: expected {WEIGHTS} or {INDEX}")


def check_readable(files: list[Path]) -> None:
    """A truncated or corrupt file is found by its header, before a model is built."""
    for path in files:
        try:
            with safe_open(path, framework="pt") as handle:
                handle.keys()
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a whole safetensors file (truncated or corrupt): {error}") from error


def loaded_bytes(files: list[Path], dtype: torch.dtype | None) -> int:
    """What the weights take once they are loaded in this dtype (None: as they are stored), by the files' headers."""
    total = 0
    for path in files:
        with safe_open(path, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (the handle is no mapping)
                part = handle.get_slice(name)
                stored = _SIZES.get(part.get_dtype(), 1)
                wanted = stored if dtype is None or part.get_dtype() not in _FLOATS else dtype.itemsize
                total += wanted * prod(part.get_shape())
    return total


_FLOATS = ("F64", "F32", "F16", "BF16")
_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


def check_names(source: object, info: dict[str, Any]) -> None:
    """`info` is what transformers says after loading; names that do not fit are an error, not a warning."""
    for kind, problem in (
        ("missing_keys", "lacks"),
        ("unexpected_keys", "has unexpected"),
        ("mismatched_keys", "misfits"),
    ):
        found = sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in info.get(kind, ()))
        if found:
            shown = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
            raise ValueError(f"the checkpoint {source} {problem} weights: {shown}")


def check_finite(model: nn.Module, source: object) -> None:
    for name, weight in model.named_parameters():
        if weight.is_meta or not torch.is_floating_point(weight):
            continue
        # one number tells most cases apart without a second copy of the weight
        if not torch.isfinite(weight.detach().sum()) and not torch.isfinite(weight.detach()).all():
            raise ValueError(f"the checkpoint {source} has NaN or infinite values in {name}")
