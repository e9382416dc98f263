"""The vLLM plugin: looped models as vLLM models, and LoopCD for each request.

vLLM finds it by two entry points: `register` below, which it calls in every process, and `processor.LoopCDProcessor`. A pass
through a model gives the readouts of the expert and of every amateur loop side by side; the processor contrasts them in
the rows that asked for it.
"""

ARCHITECTURES = {
    "HuginnForCausalLM": "recurrent:RavenForCausalLM",
    "RetrofitForCausalLM": "recurrent:RavenForCausalLM",
    "RavenForCausalLM": "recurrent:RavenForCausalLM",  # as public checkpoints of both call it
    "OuroForCausalLM": "stacked:StackedForCausalLM",
    "NanbeigeForCausalLM": "stacked:StackedForCausalLM",
}


def register() -> None:
    """Tell vLLM of the models and their configurations. Called again it changes nothing; no model code is imported."""
    import_configs()
    from vllm import ModelRegistry  # pyright: ignore[reportMissingImports]
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP  # pyright: ignore[reportMissingImports]

    from loopcd.serving.vllm.start_up import LoopedStartUp

    for architecture, home in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, f"{__name__}.{home}")
        MODELS_CONFIG_MAP[architecture] = LoopedStartUp


def import_configs() -> None:
    """Register the configurations with transformers, as importing the package's top does."""
    from transformers import AutoConfig

    from loopcd.models.configs import HuginnConfig, NanbeigeConfig, OuroConfig

    for config in (HuginnConfig, OuroConfig, NanbeigeConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


__all__ = ["ARCHITECTURES", "register"]
