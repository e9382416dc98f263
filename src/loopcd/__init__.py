"""Looped language models, and LoopCD: decoding that contrasts the last loop with an early one.

Importing this registers the model types `huginn_raven` and `ouro` with transformers' Auto classes, and changes nothing else.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from loopcd.decoding import (
    MTI,
    EarlyExit,
    Generation,
    Greedy,
    LoopCD,
    NoiseCD,
    SelfDraft,
    SelfEval,
    generate,
    stream,
)
from loopcd.models import (
    HuginnConfig,
    HuginnForCausalLM,
    OuroConfig,
    OuroForCausalLM,
    load,
    loop_logits,
)

__version__ = "0.1.0"

for _config, _model in ((HuginnConfig, HuginnForCausalLM), (OuroConfig, OuroForCausalLM)):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForCausalLM.register(_config, _model, exist_ok=True)

__all__ = [
    "MTI",
    "EarlyExit",
    "Generation",
    "Greedy",
    "HuginnForCausalLM",
    "LoopCD",
    "NoiseCD",
    "OuroForCausalLM",
    "SelfDraft",
    "SelfEval",
    "generate",
    "load",
    "loop_logits",
    "stream",
]
