"""`from_pretrained` of every looped model: nothing that does not fit is read, through transformers' Auto classes either."""

from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from loopcd.models import checkpoint, recognition

_OF_THE_HUB = ("revision", "cache_dir", "token", "local_files_only", "force_download")


class CheckedModel(PreTrainedModel):
    """A model that is read only from a checkpoint of its own kind, whole, and as data."""

    kinds: ClassVar[tuple[str, ...]] = ()  # of `recognition.NAMES`: those that this class reads
    stale_tokens: ClassVar[tuple[int, ...]] = ()  # special tokens in public configurations that are another model's

    @classmethod
    def check_kind(cls, fields: dict[str, Any], config: Any, kind: str, shapes: dict[str, checkpoint.Shape]) -> None:
        """Refuse what the weights' names say, or take it down in the configuration; `fields` are those of config.json."""
        if kind not in cls.kinds:
            own = " or ".join(recognition.NAMES[each] for each in cls.kinds)
            raise ValueError(f"its weights are those of {recognition.NAMES[kind]}, its config.json that of {own}")

    @classmethod
    def layer_total(cls, config: Any) -> int:
        """How many layers have weights of their own."""
        return config.num_hidden_layers

    @classmethod
    def as_loaded(cls, shapes: dict[str, checkpoint.Shape]) -> dict[str, checkpoint.Shape]:
        """The shapes by the model's own names, where transformers converts a checkpoint's."""
        return shapes

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, allow_pickle: bool = False, **kwargs: Any) -> Any:
        """transformers' `from_pretrained`, where missing, unexpected or misshapen weights are an error.

        It reads safetensors; `allow_pickle=True` also takes a folder's pickled weights: tensors, and nothing else.
        """
        if kwargs.get("use_safetensors") is False:
            raise ValueError("use_safetensors=False: loopcd reads safetensors only")
        kwargs["use_safetensors"] = True
        if pretrained_model_name_or_path is None:  # the caller's own state_dict
            return super().from_pretrained(None, *args, **kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        hub = {name: kwargs.pop(name) for name in _OF_THE_HUB if name in kwargs}
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            folder = checkpoint.find(pretrained_model_name_or_path, allow_pickle=allow_pickle, **hub)
        folder /= kwargs.pop("subfolder", "")
        fields = checkpoint.read_config(folder)
        checkpoint.check_unasked(folder, fields)
        files = checkpoint.weight_files(folder, allow_pickle)
        source = folder if files[0].suffix == ".safetensors" else None
        if source is None:
            state = kwargs["state_dict"] = checkpoint.read_pickled(files)
            shapes = {name: tuple(weight.shape) for name, weight in state.items()}
        else:
            shapes = checkpoint.weight_shapes(files)
        config, kwargs = cls._config(folder, kwargs)
        cls.check(folder, fields, config, shapes)
        read: Any = super().from_pretrained(source, *args, config=config, output_loading_info=True, **kwargs)
        model, info = read
        model.name_or_path = model.config.name_or_path = str(pretrained_model_name_or_path)
        left = {str(entry) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for entry in info.get(kind, ())}
        checkpoint.refuse(folder, "misfits", left)
        for each, name in product((model.config, model.generation_config), recognition.SPECIAL):
            if getattr(each, name, None) in cls.stale_tokens:
                setattr(each, name, None)
        if config.tie_word_embeddings and model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
            raise ValueError(f"the checkpoint {folder} misfits weights: lm_head.weight is not the embedding it is tied to")
        return (model, info) if wants_info else model

    @classmethod
    def _config(cls, folder: Path, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The configuration that was given, or else the folder's with the options that are fields of it; the other options."""
        config = kwargs.pop("config", None)
        if isinstance(config, PreTrainedConfig):
            return config, kwargs
        dtypes = {name: kwargs.pop(name) for name in ("dtype", "torch_dtype") if name in kwargs}
        config, others = checkpoint.config_of(cls.config_class, Path(config) if config else folder, **kwargs)
        return config, {**others, **dtypes}

    @classmethod
    def check(cls, folder: Path, fields: dict[str, Any], config: Any, shapes: dict[str, checkpoint.Shape]) -> None:
        """Names, shapes and configuration agree; nothing is allocated."""
        try:
            cls.check_kind(fields, config, recognition.kind_of(shapes), shapes)
        except ValueError as error:
            raise ValueError(f"the checkpoint {folder} is not one that is known: {error}") from error
        shapes = cls.as_loaded(shapes)
        checkpoint.check_layers(folder, cls.layer_total(config), shapes)
        try:
            with torch.device("meta"):
                empty = cls(config)
        except (RuntimeError, OverflowError, TypeError) as error:
            raise ValueError(f"{folder / 'config.json'} cannot be used: {' '.join(str(error).split())[:200]}") from error
        checkpoint.check_fit(folder, empty, shapes)
