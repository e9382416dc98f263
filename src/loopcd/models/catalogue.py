"""What `loopcd models` tells about each model, without reading any weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from loopcd.models import checkpoint, recognition
from loopcd.models.configs import RetrofitConfig
from loopcd.models.int8 import int8_bytes
from loopcd.models.loading import checked_dtype, checked_quantize
from loopcd.models.memory import cache_bytes, gigabytes
from loopcd.models.names import built_in
from loopcd.models.presets import PUBLIC, empty_model, family_in, preset
from loopcd.models.stages import LoopedModel, checked_loops


@dataclass(frozen=True)
class Description:
    name: str
    family: str
    loops: int
    parameters: int
    weight_bytes: int
    slots: int
    cache_bytes: int
    amateur_loop: int
    strength: float

    def cells(self) -> list[str]:
        parameters = f"{self.parameters / 1e9:.2f} B" if self.parameters >= 1e8 else f"{self.parameters / 1e6:.2f} M"
        memory = (gigabytes(self.weight_bytes), str(self.slots), gigabytes(self.cache_bytes))
        return [
            self.name,
            self.family,
            str(self.loops),
            parameters,
            *memory,
            str(self.amateur_loop),
            str(self.strength),
        ]


def describe(
    names: Sequence[str], context: int, num_loops: int | None, dtype: str, quantize: str | None = None
) -> list[Description]:
    """The models of these names (all known ones if there are none), at a context length."""
    wanted = checked_dtype(dtype) or torch.bfloat16
    checked_quantize(quantize, wanted)
    found = [(name, _empty(name)) for name in names or [*built_in(), *PUBLIC]]
    told = []
    for name, model in found:
        row = _describe(name, model, context, checked_loops(num_loops, model.num_loops), wanted)
        told.append(row if quantize is None else replace(row, weight_bytes=int8_bytes(model)))
    return told


def _empty(name: str) -> LoopedModel:
    if name in PUBLIC:
        return empty_model(PUBLIC[name]())
    folder = built_in().get(name, Path(name))
    if not folder.is_dir():
        raise ValueError(f"there is no model {name!r}: name one of {', '.join([*built_in(), *PUBLIC])}, or a folder")
    family = family_in(folder)
    config, _ = checkpoint.config_of(family.config_class, folder)
    if any((folder / each).is_file() for each in (checkpoint.WEIGHTS, checkpoint.INDEX)):  # which say more than config.json
        shapes = checkpoint.weight_shapes(checkpoint.weight_files(folder))
        family.check_kind(checkpoint.read_config(folder), config, recognition.kind_of(shapes), shapes)
    return empty_model(config)


# what makes a model the size that it was published in
_SHAPE = {
    "huginn_raven": (
        "n_embd",
        "n_heads",
        "n_layers_in_prelude",
        "n_layers_in_recurrent_block",
        "n_layers_in_coda",
        "mean_recurrence",
        "intermediate_size",
        "vocab_size",
    ),
    "ouro": (
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "total_ut_steps",
        "intermediate_size",
        "vocab_size",
    ),
}


def published_as(name: str) -> str | None:
    """The hub id of the public model that this is: by its name, or a folder's by the sizes in its configuration.

    Models of equal sizes are told apart by the folder's path; where that says nothing it is the first of `PUBLIC`.
    """
    for public in PUBLIC:
        if str(name).lower() == public.lower():
            return public
    folder = built_in().get(name, Path(name))
    if not folder.is_dir():
        return None
    fields = checkpoint.read_config(folder)
    shape = _SHAPE.get(str(fields.get("model_type")))
    if shape is None:
        return None
    found, _ = checkpoint.config_of(family_in(folder).config_class, folder)
    alike = [public for public in PUBLIC if _same_shape(found, PUBLIC[public](), shape)]
    path = "/".join(folder.resolve().parts).lower()
    named = [public for public in alike if public.rpartition("/")[2].lower() in path]
    return max(named, key=len) if named else (alike or [None])[0]


def _same_shape(one: PreTrainedConfig, other: PreTrainedConfig, shape: Sequence[str]) -> bool:
    return type(one) is type(other) and all(getattr(one, field) == getattr(other, field) for field in shape)


def _describe(name: str, model: LoopedModel, context: int, loops: int, dtype: torch.dtype) -> Description:
    parameters = sum(weight.numel() for weight in model.parameters())
    setting = preset(model, loops)
    return Description(
        name,
        "retrofit" if isinstance(model.config, RetrofitConfig) else model.config.model_type,
        loops,
        parameters,
        parameters * dtype.itemsize,
        model.slot_count(loops),
        cache_bytes(model, context, num_loops=loops, dtype=dtype),
        setting.amateur_loop,
        setting.strength,
    )
