"""How the next token is chosen: the rules, the methods, exits, and the generation loop."""

from loopcd.decoding.batch import Batch
from loopcd.decoding.draft import SelfDraft
from loopcd.decoding.exits import EarlyExit
from loopcd.decoding.generate import Generation, generate, stream
from loopcd.decoding.methods import MTI, Greedy, LoopCD, LoopGuidance, Method, NoiseCD
from loopcd.decoding.self_eval import SelfEval

__all__ = [
    "MTI",
    "Batch",
    "EarlyExit",
    "Generation",
    "Greedy",
    "LoopCD",
    "LoopGuidance",
    "Method",
    "NoiseCD",
    "SelfDraft",
    "SelfEval",
    "generate",
    "stream",
]
