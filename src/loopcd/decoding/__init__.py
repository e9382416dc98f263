"""How the next token is chosen: the rules, the methods, exits, drafts, and the generation loop.

Start with `rules`, the paper's formulas as functions of logits, then `methods`, whose settings are what users set, and
`scoring`, a method at work. `loop` makes a text token by token; `exits` lets tokens leave early (`reader`, `passes`), `draft`
and `rounds` write several tokens at once; `ticks`, `flight` and `batch` run texts that are at different loops. `generate` is
what users call; `registry` knows every method and its settings by name.
"""

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
