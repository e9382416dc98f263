"""The methods that the page offers, with the settings of each as fields of a form."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from loopcd.decoding import Method
from loopcd.decoding.registry import METHODS, settings
from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.plan import MethodSpec
from loopcd.models.presets import preset

LONGEST_TEXT = 2000  # characters of a setting


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

    def check(self, value: Any) -> None:
        """Raise unless the form could have sent this value."""
        if self.type == "text":
            if not isinstance(value, str) or len(value) > LONGEST_TEXT:
                raise ValueError(f"{self.name}: a text of at most {LONGEST_TEXT} characters")
            return
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**31  # NaN is not
        if not number or (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            bounds = [f"at least {self.low:g}"] if self.low is not None else []
            bounds += [f"at most {self.high:g}"] if self.high is not None else []
            raise ValueError(f"{self.name}={value!r}: a number{' of ' if bounds else ''}{' and '.join(bounds)}")


_SHOWN = (  # of all settings those in the form, in its order
    Field("amateur_loop", "amateur loop", low=1, step=1),
    Field("early_loop", "early loop", low=1, step=1),
    Field("weight", "weight ω", low=0, step=0.1),
    Field("noise", "noise σ", low=0, step=0.1),
    Field("strength", "strength λ", low=0, step=0.05),
    Field("entropy_threshold", "entropy threshold τ", low=0, step=0.1),
    Field("guidance", "guidance ω", step=0.1),
    Field("negative_prompt", "negative prompt", type="text"),
    Field("plausibility", "plausibility α", low=0, high=1, step=0.01),
    Field("candidates", "candidates", low=1, high=16, step=1),
    Field("exit_threshold", "change below", low=0, step=0.005, rare=True),
    Field("min_loops", "after at least", low=0, step=1, rare=True),
)


def offered(engine: LocalEngine) -> list[dict[str, Any]]:
    """Names, titles and fields, with the values that hold for this model: its preset, or the method's defaults."""
    fields = {name: [vars(field) for field in _fields(name, engine)] for name in METHODS}
    return [{"name": name, "title": kind.__name__, "settings": fields[name]} for name, kind in METHODS.items()]


def _fields(name: str, engine: LocalEngine) -> Iterator[Field]:
    loops = engine.num_loops or engine.model.num_loops
    own = asdict(preset(engine.model, loops))
    for field in _SHOWN:
        if field.name in settings(name):
            default = getattr(METHODS[name], field.name, None)
            value = own.get(field.name) if default is None else default
            yield replace(field, value=value, high=loops - 1 if field.name.endswith("_loop") else field.high)


def chosen(given: Any, name: str, engine: LocalEngine) -> Method:
    """The method that a form names, as in {"name": "loopcd", "settings": {"strength": 0.2}}; `name` is the form's side.

    Only what the form offers is taken, and only within its bounds: a request need not come from the form.
    """
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not isinstance(given.get("settings"), dict):
        raise ValueError(f"{name}: an object with a method's name and its settings")
    if given["name"] not in METHODS:
        raise ValueError(f"{name}: there is no method {given['name']!r}: those are {', '.join(METHODS)}")
    known = {field.name: field for field in _fields(given["name"], engine)}
    for setting, value in given["settings"].items():
        if setting not in known:
            raise ValueError(f"{name}: {given['name']} has no setting {setting!r}: those are {', '.join(known)}")
        known[setting].check(value)
    return MethodSpec(given["name"], tuple((setting, _whole(value)) for setting, value in given["settings"].items())).build()


def _whole(value: Any) -> Any:
    """A form's numbers come as 3.0 where they could be 3."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**31 else value
