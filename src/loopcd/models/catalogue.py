"""What `loopcd models` tells about each model, without reading any weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig

from loopcd.models import checkpoint
from loopcd.models.loading import built_in, checked_dtype
from loopcd.models.memory import cache_bytes, gigabytes
from loopcd.models.presets import FAMILIES, PUBLIC, empty_model, preset
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


def describe(names: Sequence[str], context: int, num_loops: int | None, dtype: str) -> list[Description]:
    """The models of these names (all known ones if there are none), at a context length."""
    wanted = checked_dtype(dtype) or torch.bfloat16
    found = [(name, _empty(name)) for name in names or [*built_in(), *PUBLIC]]
    return [_describe(name, model, context, checked_loops(num_loops, model.num_loops), wanted) for name, model in found]


def _empty(name: str) -> LoopedModel:
    if name in PUBLIC:
        return empty_model(PUBLIC[name]())
    folder = built_in().get(name, Path(name))
    if not folder.is_dir():
        raise ValueError(f"there is no model {name!r}: name one of {', '.join([*built_in(), *PUBLIC])}, or a folder")
    fields = checkpoint.read_config(folder)
    if fields.get("model_type") not in FAMILIES:
        raise ValueError(f"{name} has model type {fields.get('model_type')!r}: looped models are {', '.join(FAMILIES)}")
    return empty_model(AutoConfig.from_pretrained(folder))


def _describe(name: str, model: LoopedModel, context: int, loops: int, dtype: torch.dtype) -> Description:
    parameters = sum(weight.numel() for weight in model.parameters())
    setting = preset(model, loops)
    return Description(
        name,
        model.config.model_type,
        loops,
        parameters,
        parameters * dtype.itemsize,
        model.slot_count(loops),
        cache_bytes(model, context, num_loops=loops, dtype=dtype),
        setting.amateur_loop,
        setting.strength,
    )
