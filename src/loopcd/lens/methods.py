"""The methods that the page offers, with the settings of each as fields of a form."""

from dataclasses import dataclass
from typing import Any

from loopcd.decoding import Method
from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.specs import MethodSpec
from loopcd.models.presets import preset


@dataclass(frozen=True)
class Field:
    """One setting: None as value means off, or the model's own."""

    name: str
    title: str
    value: Any = None
    type: str = "number"
    low: float | None = None
    high: float | None = None
    step: float | None = None
    rare: bool = False  # shown when asked for


_LEAVING = (
    Field("exit_threshold", "change below", low=0, step=0.005, rare=True),
    Field("min_loops", "after at least", low=0, step=1, rare=True),
)


def offered(engine: LocalEngine) -> list[dict[str, Any]]:
    """Names, titles and fields, with the values that hold for this model."""
    loops = engine.num_loops or engine.model.num_loops
    own = preset(engine.model, loops)
    plausibility = Field("plausibility", "plausibility α", 0.1, low=0, high=1, step=0.01)
    strength = Field("strength", "strength λ", own.strength, low=0, step=0.05)
    amateur = Field("amateur_loop", "amateur loop", own.amateur_loop, low=1, high=loops - 1, step=1)
    methods = {
        "greedy": ("Greedy", ()),
        "loopcd": ("LoopCD", (amateur, strength, plausibility)),
        "loopguidance": ("LoopGuidance", (
            Field("early_loop", "early loop", 1, low=1, high=loops - 1, step=1),
            Field("weight", "weight ω", 1.0, low=0, step=0.1),
        )),
        "noisecd": ("NoiseCD", (Field("noise", "noise σ", 0.5, low=0, step=0.1), strength, plausibility)),
        "mti": ("MTI", (
            Field("entropy_threshold", "entropy threshold τ", 1.0, low=0, step=0.1),
            Field("guidance", "guidance ω", 1.5, step=0.1),
            Field("negative_prompt", "negative prompt", "OUTPUT ERROR", type="text"),
            plausibility,
        )),
        "selfeval": ("SelfEval", (Field("candidates", "candidates", 4, low=1, high=16, step=1),)),
    }  # fmt: skip
    return [
        {"name": name, "title": title, "settings": [vars(field) for field in (*fields, *_LEAVING)]}
        for name, (title, fields) in methods.items()
    ]


def chosen(given: Any, name: str) -> Method:
    """The method that a form names, as in {"name": "loopcd", "settings": {"strength": 0.2}}; `name` is the form's side."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not isinstance(given.get("settings"), dict):
        raise ValueError(f"{name}: an object with a method's name and its settings")
    settings = tuple(given["settings"].items())
    for setting, value in settings:
        if not isinstance(value, bool | int | float | str):
            raise ValueError(f"{name}: {setting} is a number or a text")
    return MethodSpec(given["name"], tuple((setting, _whole(value)) for setting, value in settings)).build()


def _whole(value: Any) -> Any:
    """A form's numbers come as 3.0 where they could be 3."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**31 else value
