"""`loopcd.load`: a looped model and its tokenizer by name, folder or hub id."""

import re
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from loopcd.models import checkpoint
from loopcd.models.memory import free_bytes, gigabytes
from loopcd.models.presets import FAMILIES, PUBLIC
from loopcd.models.stages import LoopedModel, checked_loops

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WANTED = ["*.json", "*.safetensors", "tokenizer*", "*.model", "*.txt", "*.jinja"]
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    num_loops: int | None = None,
    compile: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    device_map: str | dict[str, Any] | None = None,
    quantization_config: Any = None,
    attn_implementation: str | None = None,
) -> tuple[LoopedModel, PreTrainedTokenizerBase | None]:
    """A model, ready to generate, and its tokenizer (None where the folder has none).

    `name` is a built-in model, a folder, or a hub id. `dtype` is the checkpoint's own unless given; `num_loops` runs
    fewer or more loops than the model was trained for. `compile` compiles the layers' parts (some time at the first passes).
    `revision` and `token` are for the hub. `device_map` (as "auto", over several GPUs) takes the place of `device`; it,
    `quantization_config` and `attn_implementation` are transformers' own.
    """
    if device is not None and device_map is not None:
        raise ValueError(f"device={str(device)!r} and device_map={device_map!r}: one of the two says where the model is")
    wanted_dtype, wanted_device = checked_dtype(dtype), checked_device(device)
    if num_loops is not None:
        checked_loops(num_loops, 0)
    folder = find(name, revision, token)
    config = checkpoint.read_config(folder)
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise ValueError(f"{name} has model type {config.get('model_type')!r}: looped models are {', '.join(FAMILIES)}")
    checkpoint.check_config(family.config_class, folder)
    files = checkpoint.weight_files(folder)
    checkpoint.check_readable(files)
    given = {
        "device_map": device_map,
        "quantization_config": quantization_config,
        "attn_implementation": attn_implementation,
    }
    options = {key: value for key, value in given.items() if value is not None}
    placed = device_map is not None or quantization_config is not None
    if not placed:
        _check_room(name, folder, files, wanted_dtype, wanted_device)
    model = _read(family, folder, wanted_dtype, options)
    checkpoint.check_finite(model, name)
    if num_loops is not None:
        model.set_num_loops(num_loops)
    if compile:
        model.compile_loops()
    if not placed:
        model = model.to(wanted_device)  # pyright: ignore[reportArgumentType]
    return model.eval(), _tokenizer(folder)


def built_in() -> dict[str, Path]:
    """The models that come with the package."""
    assets = Path(str(resources.files("loopcd"))) / "assets"
    return {path.parent.name: path.parent for path in sorted(assets.glob("*/config.json"))}


def find(name: str | Path, revision: str | None = None, token: str | bool | None = None) -> Path:
    """The folder of a built-in model, of a local one, or of one downloaded from the hub."""
    if str(name) in built_in():
        return built_in()[str(name)]
    if Path(name).is_dir():
        return Path(name)
    known = ", ".join([*built_in(), *PUBLIC])
    if Path(name).is_file():
        raise ValueError(f"{name} is a file: name the folder that holds config.json and the weights")
    if not _HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        raise ValueError(f"there is no model {str(name)!r}: name one of {known}, a folder, or a hub id OWNER/NAME")
    try:
        return Path(snapshot_download(str(name), revision=revision, token=token, allow_patterns=_WANTED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{str(name)!r} is no folder here and could not be had from the hub ({reason}): known are {known}"
        ) from error


def checked_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype in DTYPES.values():
        return dtype  # pyright: ignore[reportReturnType]
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in DTYPES:
        return DTYPES[dtype.removeprefix("torch.")]
    raise ValueError(f"dtype={str(dtype)!r}: one of {', '.join(DTYPES)}")


def checked_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device(_accelerators()[0])
    try:
        wanted = torch.device(device)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        available = ", ".join(sorted(_accelerators()))
        raise ValueError(f"device={str(device)!r} cannot be used here (available: {available})") from error
    return wanted


def _accelerators() -> list[str]:
    """The kinds of devices that there are, the one to take first."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, there in found.items() if there]


def _check_room(name: object, folder: Path, files: list[Path], dtype: torch.dtype | None, device: torch.device) -> None:
    """The weights as they will be, which may be half of what the files hold."""
    config = checkpoint.read_config(folder)
    if dtype is None:
        dtype = DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch."))
    needed, free = checkpoint.loaded_bytes(files, dtype), free_bytes(device)
    if free is not None and needed > free:
        raise MemoryError(f"the weights of {name} take {gigabytes(needed)}, but {gigabytes(free)} are free on {device}")


def _read(family: type[LoopedModel], folder: Path, dtype: torch.dtype | None, given: dict[str, Any]) -> LoopedModel:
    # weights of another shape are named by check_names; transformers' own error only points at a printed table
    options: dict[str, Any] = {"dtype": dtype or "auto", "output_loading_info": True, "ignore_mismatched_sizes": True, **given}
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        model, info = family.from_pretrained(folder, **options)
    except RuntimeError as error:
        raise ValueError(f"the checkpoint {folder} does not fit its config.json: {error}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()
    checkpoint.check_names(folder, info)
    return model


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"the tokenizer in {folder} cannot be read: {error}") from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
