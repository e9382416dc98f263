"""What an engine serves, and what a request may ask of it. Free of vLLM, so that it can be read and tested alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from loopcd.decoding import LoopGuidance, checks
from loopcd.models.presets import preset_for

SECTION = "loopcd"  # of vLLM's additional_config
SWITCH = "loopcd"
PREFIX = "loopcd_"  # of a request's keys
FIELDS = ("amateur_loop", "strength", "plausibility")
GUIDANCE = "loopguidance"
GUIDANCE_FIELDS = ("early_loop", "weight", "adaptive")
KEYS = (SWITCH, *(PREFIX + field for field in FIELDS), GUIDANCE, *(f"{GUIDANCE}_{field}" for field in GUIDANCE_FIELDS))
LOOPS = {"huginn_raven": "mean_recurrence", "ouro": "total_ut_steps", "nanbeige": "num_loops"}  # by model type, their field
NEAR = 0.8  # how alike a misspelt key is, at least, to the one that was meant
STRONGEST = 1000.0  # beyond, scores would leave float32


@dataclass(frozen=True)
class Contrast:
    """LoopCD for one request: ℓ_a, λ and α."""

    amateur_loop: int
    strength: float
    plausibility: float = 0.1


@dataclass(frozen=True)
class Guidance:
    """LoopGuidance for one request: b, and ω or its cap."""

    early_loop: int = LoopGuidance.early_loop
    weight: float = LoopGuidance.weight
    adaptive: bool = LoopGuidance.adaptive

    @property
    def amateur_loop(self) -> int:
        """The loop whose readout it needs."""
        return self.early_loop


Setting = TypeVar("Setting", Contrast, Guidance)


@dataclass(frozen=True)
class Served:
    """A looped model as an engine was started with it."""

    num_loops: int
    amateur_loops: tuple[int, ...]  # whose readouts a pass may compute
    preset: Contrast
    default: Contrast | None = None  # for requests that say nothing; None: the model's own distribution

    def read_request(self, extra: Mapping[str, Any] | None) -> Contrast | Guidance | None:
        """What a request's extra arguments ask for: LoopCD, LoopGuidance, or None for the model's own distribution."""
        check_names(extra)
        guided, guidance = _fields(extra, GUIDANCE, "LoopGuidance")
        contrasted, setting = _fields(extra, SWITCH, "LoopCD")
        if guided and contrasted:
            raise ValueError(f"{GUIDANCE} and {SWITCH}: a request has one of them")
        if guided:
            return self.checked(Guidance(**guidance), f"{GUIDANCE}_")
        if contrasted is None:
            return self.default
        return self.checked(replace(self.default or self.preset, **setting), PREFIX) if contrasted else None

    def checked(self, setting: Setting, prefix: str) -> Setting:
        """The setting, refused where a field is out of range or not served here; `prefix` is of the fields' names."""
        return replace(
            setting, **{field: self._checked(field, prefix + field, value) for field, value in vars(setting).items()}
        )

    def _checked(self, field: str, name: str, value: Any) -> int | float | bool:
        if field == "adaptive":
            return _switched(name, value)
        if field in ("amateur_loop", "early_loop"):
            checks.whole(name, value)
            if value not in self.amateur_loops:
                started = f"started for amateur loops {', '.join(map(str, self.amateur_loops)) or 'none'}"
                raise ValueError(f"{name}={value!r}: this engine was {started} of a model with {self.num_loops} loops")
            return value
        try:
            checks.share(name, value) if field == "plausibility" else checks.number(name, value, 0)
        except OverflowError as error:
            raise ValueError(f"{name} is a number that fits a float: {error}") from error
        if value > STRONGEST:
            raise ValueError(f"{name}={value!r}: at most {STRONGEST:g}")
        return float(value)


def check_names(extra: Mapping[str, Any] | None) -> None:
    """Refuse a key that was meant for LoopCD or LoopGuidance and is not one of theirs; others' keys are their own affair."""
    for key in extra or ():
        if not isinstance(key, str) or key in KEYS:
            continue
        plain = key.casefold().replace("-", "_")
        if plain.startswith((SWITCH, GUIDANCE)) or get_close_matches(plain, (*KEYS, *FIELDS, "early_loop"), 1, NEAR):
            raise ValueError(f"{key}: no such field; there are {', '.join(KEYS)}")


def _fields(extra: Mapping[str, Any] | None, switch: str, method: str) -> tuple[bool | None, dict[str, Any]]:
    """Whether a request turns a method on (None: it does not mention it), and the method's fields that it gives."""
    given = {key: value for key, value in (extra or {}).items() if isinstance(key, str) and key.startswith(switch)}
    if not given:
        return None, {}
    on = _switched(switch, given.pop(switch, True))
    if given and not on:
        raise ValueError(f"{switch}=false turns {method} off: leave out {min(given)}")
    return on, {key.removeprefix(f"{switch}_"): value for key, value in given.items()}


def _switched(name: str, value: Any) -> bool:
    if value not in (0, 1):  # True and False are among them; over HTTP they may arrive as numbers
        raise ValueError(f"{name}={value!r}: true or false")
    return bool(value)


def read_served(config: Any, additional: Any) -> Served:
    """From a looped model's configuration and the engine's additional_config.

    `{"loopcd": {"amateur_loops": [2, 4], "default": {"strength": 0.2}}}`. Without amateur_loops, models with a coda carry their
    preset's loop, since each takes a pass through it, and others carry all, since they cost nothing. `default` is what
    a request gets that says nothing about LoopCD, its missing fields being the preset's.
    """
    loops = getattr(config, LOOPS[config.model_type])
    checks.whole(LOOPS[config.model_type], loops, 1)  # it may be from --hf-overrides
    chosen = preset_for(config.model_type, loops)
    section = (additional if isinstance(additional, Mapping) else {}).get(SECTION, {})
    if not isinstance(section, Mapping) or set(section) - {"amateur_loops", "default"}:
        raise ValueError(f"additional_config {SECTION}={section!r}: an object with amateur_loops and default")
    listed, default = section.get("amateur_loops"), section.get("default")
    if listed is not None:
        amateurs = _amateur_loops(listed, loops)
    elif config.model_type == "huginn_raven":
        amateurs = (chosen.amateur_loop,) if loops > 1 else ()
    else:
        amateurs = tuple(range(1, loops))
    own = chosen.amateur_loop if chosen.amateur_loop in amateurs or not amateurs else amateurs[0]
    served = Served(loops, amateurs, Contrast(own, chosen.strength))
    if default is None:
        return served
    if not isinstance(default, Mapping) or set(default) - set(FIELDS):
        raise ValueError(f"additional_config {SECTION}.default={default!r}: an object with some of {', '.join(FIELDS)}")
    return replace(served, default=served.checked(replace(served.preset, **default), f"{SECTION}.default."))


def _amateur_loops(value: Any, loops: int) -> tuple[int, ...]:
    listed = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(loop, bool) or not isinstance(loop, int) or not 1 <= loop < loops for loop in listed):
        raise ValueError(f"amateur_loops={value!r}: a list of loops from 1 to {loops - 1}, one less than the model's {loops}")
    return tuple(sorted(set(listed)))
