"""What is to be run: methods with settings, as `--methods greedy,loopcd:strength=0.2` names them, seeds, and the batches in
their fixed order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from loopcd.decoding import Method, checks
from loopcd.decoding.registry import DRAFT, METHODS, build, settings

Value = bool | int | float | str


@dataclass(frozen=True)
class MethodSpec:
    """A method's name and the settings that were given for it; all others are the method's own."""

    name: str
    given: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise ValueError(f"there is no method {self.name!r}: known are {', '.join(METHODS)}")
        for setting, _ in self.given:
            if setting not in settings(self.name):
                known = ", ".join(settings(self.name))
                raise ValueError(f"{self.name} has no setting {setting!r}: its settings are {known}")

    @property
    def label(self) -> str:
        if not self.given:
            return self.name
        return f"{self.name}:" + ",".join(f"{setting}={value}" for setting, value in self.given)

    @property
    def slug(self) -> str:
        """The label as a file name: of its own also where settings are texts, which may be long or differ by signs alone."""
        name = re.sub(r"[^\w.=+-]+", "_", self.label)
        texts = [value for _, value in self.given if isinstance(value, str)]
        if all(re.fullmatch(r"[a-z0-9.]{1,40}", text) for text in texts):
            return name
        return f"{name[:60]}-{sha256(self.label.encode()).hexdigest()[:8]}"

    def filled(self, more: Mapping[str, Value]) -> MethodSpec:
        """With these settings where none were given."""
        given = dict(self.given)
        missing = tuple((name, value) for name, value in more.items() if name not in given)
        return MethodSpec(self.name, (*missing, *self.given))

    def published(self) -> bool:
        """Whether the paper's Tables 2 and 9 run it so, LoopCD's loop and strength aside; drafting changes no token."""
        searched = ("amateur_loop", "strength") if self.name == "loopcd" else ()
        return all(name in (*searched, *DRAFT) for name, _ in self.given)

    def build(self) -> Method:
        try:
            return build(self.name, dict(self.given))
        except TypeError as error:  # a text where a number belongs
            raise ValueError(f"--methods {self.label}: {error}") from error


def parse_methods(text: str) -> tuple[MethodSpec, ...]:
    """`greedy,loopcd:amateur_loop=2,strength=0.1,mti`: a part with `=` and no method's name belongs to the method before."""
    found: list[tuple[str, list[tuple[str, Value]]]] = []
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            raise ValueError(f"--methods {text!r}: an empty part between the commas")
        name, colon, setting = part.partition(":")
        if colon or "=" not in part:
            found.append((name.strip(), []))
            part = setting if colon else ""
        if part:
            _add_setting(found, part.strip(), text)
    specs = tuple(MethodSpec(name, tuple(given)) for name, given in found)
    repeated = [spec.label for place, spec in enumerate(specs) if spec in specs[:place]]  # also 1 and 1.0, which are equal
    if repeated:
        raise ValueError(f"--methods {text!r}: {repeated[0]} stands there twice")
    return specs


def _add_setting(found: list[tuple[str, list[tuple[str, Value]]]], part: str, text: str) -> None:
    setting, equals, value = (each.strip() for each in part.partition("="))
    if not equals or not setting or not value:
        raise ValueError(f"--methods {text!r}: {part!r} is not of the form setting=value")
    if not found:
        raise ValueError(f"--methods {text!r}: the setting {part!r} stands before any method")
    if any(setting == known for known, _ in found[-1][1]):
        raise ValueError(f"--methods {text!r}: {setting} is set twice for {found[-1][0]}")
    found[-1][1].append((setting, _value(value)))


def _value(text: str) -> Value:
    """A number where it reads as one."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Run:
    """One method under one seed, over all items."""

    method: MethodSpec
    seed: int | None  # None: the zero initial state, and draws from seed 0

    @property
    def slug(self) -> str:
        return self.method.slug if self.seed is None else f"{self.method.slug}.seed{self.seed}"


@dataclass(frozen=True)
class RunPlan:
    methods: tuple[MethodSpec, ...]
    seeds: tuple[int, ...] | None = None
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("--methods: at least one method")
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0):
            raise ValueError(f"--seeds {','.join(map(str, self.seeds))}: different whole numbers of at least 0")
        checks.temperature("--temperature", self.temperature)
        checks.share("--top-p", self.top_p)
        if self.top_p < 1 and not self.temperature:
            raise ValueError(f"--top-p {self.top_p}: at --temperature 0 nothing is drawn")
        if self.temperature and any(spec.name == "selfeval" for spec in self.methods):
            raise ValueError(
                f"--temperature {self.temperature}: selfeval draws its candidates itself, by selfeval:temperature=0.7,top_p=0.9"
            )

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(Run(method, seed) for method in self.methods for seed in self.seeds or (None,))


def parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--seeds {text!r}: whole numbers with commas between them, as in 0,1,2,3") from error


def batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Items by length, the longest first: what does not fit into memory shows at once, and the time left is not too low."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return [order[start : start + size] for start in range(0, len(order), size)]
