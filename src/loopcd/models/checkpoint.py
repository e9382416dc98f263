"""Where a checkpoint is, and what is checked about it: by its files' headers before any memory is taken, then its weights.

Each finding is one sentence that says what was wrong, where, and what would be right.
"""

import json
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from loopcd.models.names import local_folder

Shape = tuple[int, ...]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SAFETENSORS = "*.safetensors"
WANTED = ["*.json", SAFETENSORS, "tokenizer*", "*.model", "*.txt", "*.jinja"]  # of a hub repository
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_HOW_TO_CONVERT = (
    "Convert it once, where you trust the file: state = torch.load(FILE, weights_only=True); "
    "safetensors.torch.save_file(state, 'model.safetensors')"
)
_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def find(name: str | Path, weights: bool = True, allow_pickle: bool = False, **hub: Any) -> Path:
    """The folder of a built-in model, of a local one, or of one downloaded from the hub, without its weights if need be.

    `hub` are options of `snapshot_download`, as `revision` and `token`.
    """
    folder = local_folder(name)
    if folder is not None:
        return folder
    wanted = [pattern for pattern in WANTED if weights or pattern != SAFETENSORS]
    wanted += PICKLED if weights and allow_pickle else ()
    given = {key: value for key, value in hub.items() if value is not None}
    try:
        return Path(snapshot_download(str(name), allow_patterns=wanted, **given))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{str(name)!r} is no folder here and could not be had from the hub ({reason})") from error


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no config.json: a model folder holds config.json and {WEIGHTS}")
    try:
        config = json.loads(path.read_text(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}, not the fields of a configuration")
    for name in ("model_type", "dtype", "torch_dtype"):
        if not isinstance(config.get(name), str | None):
            raise ValueError(f"{path} cannot be used: {name}={config[name]!r} should be a text")
    return config


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number that a model has")


def config_of(kind: Any, folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The configuration in the folder, and the options that were none of its fields; a wrong field is named."""
    try:
        return kind.from_pretrained(folder, return_unused_kwargs=True, **options)
    except (StrictDataclassError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be used: {' '.join(str(error).split())}") from error


def check_unasked(folder: Path, fields: Mapping[str, Any]) -> None:
    """A folder neither adds an adapter nor fetches an attention kernel by itself."""
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            f"{folder} has an adapter_config.json: adapters are not applied unasked; merge it into the weights, or remove it"
        )
    for name in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        if fields.get(name) is not None and fields[name] not in _ATTENTION:
            raise ValueError(
                f"{folder / 'config.json'} cannot be used: {name}={fields[name]!r}, one of {', '.join(_ATTENTION)}; "
                "code from the hub is not run"
            )


def has_safetensors(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (WEIGHTS, INDEX))


def weight_files(folder: Path, allow_pickle: bool = False) -> list[Path]:
    """The safetensors files of the checkpoint; where there are none and it is allowed, pickled ones. Else they are refused."""
    indexed = _indexed(folder) if (folder / INDEX).is_file() else []
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]  # as transformers chooses
    pickled = [] if indexed else sorted(path for pattern in PICKLED for path in folder.glob(pattern))
    if pickled and not allow_pickle:
        raise ValueError(
            f"{folder} has weights only as {_some([path.name for path in pickled])}: loopcd reads safetensors only, because "
            f"the others can run code when they are opened. {_HOW_TO_CONVERT}; or say allow_pickle=True (--allow-pickle), "
            "which reads tensors and refuses all else"
        )
    if not indexed and not pickled:
        raise ValueError(
            f"{folder} has no weights: expected {WEIGHTS} or {INDEX}; pickled ones are fetched from the hub and read only with "
            "allow_pickle=True (--allow-pickle)"
        )
    return indexed or pickled


def _indexed(folder: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder / INDEX} is not an index of weights: {error!r}") from error
    outside = [str(name) for name in names if not isinstance(name, str) or name != Path(name).name]
    if outside:
        raise ValueError(f"{folder / INDEX} names {_some(outside)}: weights are files of the same folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {_some(missing)}, which {INDEX} names")
    return [folder / name for name in names]


def _header(path: Path) -> dict[str, tuple[str, Shape]]:
    """How each weight in the file is stored, and its shape: a truncated or corrupt file is found here."""
    try:
        with safe_open(path, framework="pt") as handle:
            parts = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file (truncated or corrupt): {error}") from error


def weight_shapes(files: Sequence[Path]) -> dict[str, Shape]:
    return {name: shape for path in files for name, (_, shape) in _header(path).items()}


def stored_dtype(files: Sequence[Path]) -> torch.dtype | None:
    """Of the first weights that are read: a model's own where its configuration names none."""
    names = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    return next((names[stored] for path in files for stored, _ in _header(path).values() if stored in names), None)


def loaded_bytes(files: Sequence[Path], dtype: torch.dtype | None) -> int:
    """What the weights take once they are loaded in this dtype (None: as they are stored), by the files' headers."""
    total = 0
    for path in files:
        if path.suffix != ".safetensors":
            total += path.stat().st_size  # a pickle does not tell in advance
            continue
        for stored, shape in _header(path).values():
            bits = re.search(r"\d+", stored)  # as in BF16; a boolean has none
            size = max(1, int(bits[0]) // 8) if bits else 1
            total += prod(shape) * (dtype.itemsize if dtype and stored in ("F64", "F32", "F16", "BF16") else size)
    return total


def read_pickled(files: Sequence[Path]) -> dict[str, Tensor]:
    """The weights in pickled files, by a reader that makes tensors and runs nothing."""
    found: dict[str, Tensor] = {}
    for path in files:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except Exception as error:  # a pickle can fail in any way
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{path} does not hold weights alone, or is damaged: {reason}") from error
        if not isinstance(state, dict) or not all(isinstance(each, Tensor) for each in state.values()):
            raise ValueError(f"{path} does not hold weights alone: a dictionary of names and tensors is read")
        # without the prefixes that wrappers of training leave behind
        found.update({re.sub(r"^(module\.|_orig_mod\.)+", "", str(name)): weight for name, weight in state.items()})
    return found


# What fits


def check_layers(source: object, layers: int, shapes: Mapping[str, Shape]) -> None:
    """A configuration of far more layers than there are weights is refused before even an empty model is built."""
    found = len({match[0] for name in shapes if (match := re.match(r"(\w+\.)*?\w+\.\d+\.", name))})
    if layers > found + 64:
        raise ValueError(f"the checkpoint {source} lacks weights: config.json has {layers} layers, the weights have {found}")


def check_fit(source: object, model: PreTrainedModel, shapes: Mapping[str, Shape]) -> None:
    """The names and shapes of the weights are those of the model, which is on the meta device."""
    tied: Collection[str] = (model._tied_weights_keys or ()) if model.config.tie_word_embeddings else ()
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    unexpected = [name for name in shapes.keys() - wanted if not any(re.search(each, name) for each in ignored)]
    misfits = [
        f"{name} ({_shape(shapes[name])}, where config.json says {_shape(wanted[name])})"
        for name in sorted(wanted.keys() & shapes)
        if shapes[name] != wanted[name]
    ]
    refuse(source, "lacks", wanted.keys() - shapes.keys() - set(tied))
    refuse(source, "has unexpected", unexpected)
    refuse(source, "misfits", misfits)


def _shape(shape: Shape) -> str:
    return " × ".join(map(str, shape)) or "a number"


def refuse(source: object, problem: str, names: Collection[str]) -> None:
    if names:
        raise ValueError(f"the checkpoint {source} {problem} weights: {_some(sorted(names))}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def check_finite(model: nn.Module, source: object) -> None:
    for name, weight in model.named_parameters():
        if weight.is_meta or not torch.is_floating_point(weight):
            continue
        # one number tells most cases apart without a second copy of the weight
        if not torch.isfinite(weight.detach().sum()) and not torch.isfinite(weight.detach()).all():
            raise ValueError(f"the checkpoint {source} has NaN or infinite values in {name}")
