"""What `loopcd models` tells about each model, without reading any weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from loopcd.models import checkpoint, recognition
from loopcd.models.configs import RetrofitConfig
from loopcd.models.int8 import int8_bytes
from loopcd.models.loading import checked_dtype, checked_quantize
from loopcd.models.memory import cache_bytes, gigabytes
from loopcd.models.names import built_in, unknown
from loopcd.models.presets import FAMILIES, PUBLIC, empty_model, family_in, preset
from loopcd.models.stages import LoopedModel, checked_loops

# what makes a model the size that it was published in, where its configuration has such a field
_SIZES = (
    *("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"),
    *("n_layers_in_prelude", "n_layers_in_recurrent_block", "mean_recurrence", "total_ut_steps"),
)


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
        memory = (gigabytes(self.weight_bytes), self.slots, gigabytes(self.cache_bytes))
        return [
            str(cell) for cell in (self.name, self.family, self.loops, parameters, *memory, self.amateur_loop, self.strength)
        ]


def describe(
    names: Sequence[str], context: int, num_loops: int | None, dtype: str, quantize: str | None = None
) -> list[Description]:
    """The models of these names (all known ones if there are none), at a context length."""
    wanted = checked_dtype(dtype) or torch.bfloat16
    checked_quantize(quantize, wanted)
    told = []
    for name in names or [*built_in(), *PUBLIC]:
        model = _empty(name)
        loops = checked_loops(num_loops, model.num_loops)
        family = "retrofit" if isinstance(model.config, RetrofitConfig) else model.config.model_type
        parameters = sum(weight.numel() for weight in model.parameters())
        weights = parameters * wanted.itemsize if quantize is None else int8_bytes(model)
        cache, setting = cache_bytes(model, context, num_loops=loops, dtype=wanted), preset(model, loops)
        memory = (parameters, weights, model.slot_count(loops), cache)
        told.append(Description(name, family, loops, *memory, setting.amateur_loop, setting.strength))
    return told


def _empty(name: str) -> LoopedModel:
    if name in PUBLIC:
        return empty_model(PUBLIC[name]())
    folder = built_in().get(name, Path(name))
    if not folder.is_dir():
        raise unknown(name, "a public model, or a folder")
    family = family_in(folder)
    config, _ = checkpoint.config_of(family.config_class, folder)
    if checkpoint.has_safetensors(folder):  # which say more than config.json
        shapes = checkpoint.weight_shapes(checkpoint.weight_files(folder))
        family.check_kind(checkpoint.read_config(folder), config, recognition.kind_of(shapes), shapes)
    return empty_model(config)


def published_as(name: str) -> str | None:
    """The hub id of the public model that this is: by its name, or a folder's by the sizes in its configuration.

    Models of equal sizes are told apart by the folder's path; where that says nothing it is the first of `PUBLIC`.
    """
    for public in PUBLIC:
        if str(name).lower() == public.lower():
            return public
    folder = built_in().get(name, Path(name))
    if not folder.is_dir() or checkpoint.read_config(folder).get("model_type") not in FAMILIES:
        return None
    found, _ = checkpoint.config_of(family_in(folder).config_class, folder)
    alike = [public for public in PUBLIC if _sizes(PUBLIC[public]()) == _sizes(found)]
    path = "/".join(folder.resolve().parts).lower()
    named = [public for public in alike if public.rpartition("/")[2].lower() in path]
    return max(named, key=len) if named else (alike or [None])[0]


def _sizes(config: PreTrainedConfig) -> tuple[object, ...]:
    return type(config), *(getattr(config, name, None) for name in _SIZES)
