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
    """Tell vLLM of the models; transformers knows their configurations since the package was imported. Called again it changes
    nothing; no model code is imported."""
    from vllm import ModelRegistry  # pyright: ignore[reportMissingImports]
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP  # pyright: ignore[reportMissingImports]

    from loopcd.serving.vllm.start_up import LoopedStartUp

    for architecture, home in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, f"{__name__}.{home}")
        MODELS_CONFIG_MAP[architecture] = LoopedStartUp
