"""Every method by name, with its settings by name: the command line, the evaluation and the viewer all take them from here.

A method's settings are the fields of its dataclass. Those of early exit and drafting have names of their own, so that all
settings of a method can stand side by side: `exit_threshold` is `EarlyExit.threshold`, `draft_length` is `SelfDraft.length`.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from loopcd.decoding.draft import SelfDraft
from loopcd.decoding.exits import EarlyExit
from loopcd.decoding.methods import MTI, Greedy, LoopCD, LoopGuidance, Method, NoiseCD
from loopcd.decoding.self_eval import SelfEval

METHODS: dict[str, type[Method]] = {
    "greedy": Greedy,
    "loopcd": LoopCD,
    "loopguidance": LoopGuidance,
    "noisecd": NoiseCD,
    "mti": MTI,
    "selfeval": SelfEval,
}
EXIT = {"exit_threshold": "threshold", "min_loops": "min_loops", "exit_criterion": "criterion", "exited": "exited"}
DRAFT = {"draft_loops": "loops", "draft_length": "length"}
_NOT_TOLD = {"exit", "draft", "seed", "question"}  # objects and functions; a run's seed is the run's


def own_settings(name: str) -> tuple[str, ...]:
    """The method's own, without those of early exit and drafting."""
    return tuple(each.name for each in fields(METHODS[name]) if each.name not in _NOT_TOLD)


def settings(name: str) -> tuple[str, ...]:
    """All settings of the method of that name."""
    return (*own_settings(name), *EXIT, *(DRAFT if METHODS[name].can_draft else ()))


def build(name: str, given: Mapping[str, Any]) -> Method:
    """The method with these settings of its own, of early exit and of drafting; all others are the method's defaults."""
    own = {key: value for key, value in given.items() if key not in EXIT and key not in DRAFT}
    leaving = {EXIT[key]: value for key, value in given.items() if key in EXIT}
    drafting = {DRAFT[key]: value for key, value in given.items() if key in DRAFT}
    if leaving:
        own["exit"] = EarlyExit(**leaving)
    if drafting:
        own["draft"] = SelfDraft(**drafting)
    return METHODS[name](**own)
