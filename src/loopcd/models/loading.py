"""`loopcd.load`: a looped model and its tokenizer by name, folder or hub id."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from loopcd.models import checkpoint
from loopcd.models.checkpoint import find
from loopcd.models.int8 import has_bfloat16, to_int8
from loopcd.models.memory import free_bytes, gigabytes
from loopcd.models.presets import family_in
from loopcd.models.stages import LoopedModel, checked_loops

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROOMY = 0.8  # of the free memory: what a model that is widened may take

log = logging.getLogger("loopcd")


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    num_loops: int | None = None,
    compile: bool = False,
    layout: bool = True,
    quantize: str | None = None,
    allow_pickle: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    device_map: str | dict[str, Any] | None = None,
    quantization_config: Any = None,
    attn_implementation: str | None = None,
) -> tuple[LoopedModel, PreTrainedTokenizerBase | None]:
    """A model, ready to generate, and its tokenizer (None where the folder has none).

    `name` is a built-in model, a folder, or a hub id. `dtype` is the checkpoint's own unless given, or float32 on a
    CPU that has no units for shorter ones; `num_loops` runs fewer or more loops than the model was trained for.
    `compile` compiles the layers' parts (some time at the first passes). On a CPU `layout` times the shapes of the weights,
    once in a process, and puts them as is fastest there. `quantize="int8"` rounds the weights and computes in bfloat16.
    `allow_pickle` also takes weights in pickled files, where there are no others: their tensors, and nothing else of them.
    `revision` and `token` are for the hub. `device_map` (as "auto", over several GPUs) takes the place of `device`; it,
    `quantization_config` and `attn_implementation` are transformers' own.
    """
    if device is not None and device_map is not None:
        raise ValueError(f"device={str(device)!r} and device_map={device_map!r}: one of the two says where the model is")
    wanted_dtype, wanted_device = checked_dtype(dtype), checked_device(device)
    placed = device_map is not None or quantization_config is not None
    checked_quantize(quantize, wanted_dtype, placed)
    checked_loops(num_loops, 0)
    folder = find(name, allow_pickle=allow_pickle, revision=revision, token=token)
    family = family_in(folder)
    given = {"device_map": device_map, "quantization_config": quantization_config, "attn_implementation": attn_implementation}
    options = {key: value for key, value in given.items() if value is not None}
    options["layout"] = layout and wanted_device.type == "cpu" and quantize is None
    if not placed:
        files = checkpoint.weight_files(folder, allow_pickle)
        wanted_dtype = _dtype_that_fits(name, folder, files, wanted_dtype, wanted_device, widen=quantize is None)
    model = _read(family, folder, dtype=wanted_dtype or "auto", allow_pickle=allow_pickle, **options)
    checkpoint.check_finite(model, name)
    if quantize is not None:
        to_int8(model)
    if num_loops is not None:
        model.set_num_loops(num_loops)
    if compile:
        model.compile_loops()
    tokenizer = load_tokenizer(folder)
    if tokenizer is not None:
        _agree(model, tokenizer)
    if not placed:
        model = model.to(wanted_device)  # pyright: ignore[reportArgumentType]
    return model.eval(), tokenizer


def checked_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype in DTYPES.values():
        return dtype  # pyright: ignore[reportReturnType]
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in DTYPES:
        return DTYPES[dtype.removeprefix("torch.")]
    raise ValueError(f"dtype={str(dtype)!r}: one of {', '.join(DTYPES)}")


def checked_quantize(quantize: str | None, dtype: torch.dtype | None, placed: bool = False) -> None:
    if quantize is None:
        return
    if quantize != "int8":
        raise ValueError(f"quantize={quantize!r}: int8, or None")
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"dtype={str(dtype).removeprefix('torch.')!r} with quantize='int8': it computes in bfloat16")
    if placed:
        raise ValueError("quantize='int8' with device_map or quantization_config: one of them says how the weights are kept")


def checked_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device(_accelerators()[0])
    try:
        wanted = torch.device(device)
        torch.ones(1, device=wanted).item()  # the meta device makes tensors, but computes nothing
    except Exception as error:  # each backend raises its own kinds
        available = ", ".join(sorted(_accelerators()))
        raise ValueError(f"device={str(device)!r} cannot be used here (available: {available})") from error
    return wanted


def _accelerators() -> list[str]:
    """The kinds of devices that there are, the one to take first."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, there in found.items() if there]


def _dtype_that_fits(
    name: object, folder: Path, files: list[Path], dtype: torch.dtype | None, device: torch.device, widen: bool
) -> torch.dtype | None:
    """`dtype`, or where it is None, the checkpoint's own, float32 if that is faster and fits. What does not fit is refused."""
    config, free = checkpoint.read_config(folder), free_bytes(device)
    kept = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    stored = DTYPES.get(kept)
    if widen and dtype is None and device.type == "cpu" and stored not in (None, torch.float32) and not has_bfloat16():
        needed = checkpoint.loaded_bytes(files, torch.float32)
        if free is None or needed <= ROOMY * free:
            log.warning(
                f"{name} is loaded in float32 ({gigabytes(needed)}), which this processor multiplies faster than the {kept} "
                f"that it is stored in; dtype={kept!r} keeps that"
            )
            return torch.float32
    needed = checkpoint.loaded_bytes(files, dtype or stored)  # as they will be, which may be half of what the files hold
    if free is not None and needed > free:
        raise MemoryError(f"the weights of {name} take {gigabytes(needed)}, but {gigabytes(free)} are free on {device}")
    return dtype


def _read(family: type[LoopedModel], folder: Path, **options: Any) -> LoopedModel:
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        return family.from_pretrained(folder, **options)
    except RuntimeError as error:
        raise ValueError(f"the checkpoint {folder} does not fit its config.json: {error}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model's folder, padding on the left; None where there is none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"the tokenizer in {folder} cannot be read: {error}") from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _agree(model: LoopedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """A text ends by the checkpoint's end tokens or the tokenizer's; other tokens that it does not name are the tokenizer's."""
    config = model.generation_config
    if config is None:
        return
    listed = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends = list(dict.fromkeys(token for token in (*listed, tokenizer.eos_token_id) if token is not None))
    config.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
    for name in ("bos_token_id", "pad_token_id"):
        if getattr(config, name) is None:
            setattr(config, name, getattr(tokenizer, name))
