"""What an element of the paper comes to: a table, perhaps a picture or texts, and a finding. No drawing happens here.

All shares and accuracies are fractions; the renderers show them as percentages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from loopcd.evaluation.partings import Parting
from loopcd.evaluation.table import Estimate, Table, Verdict


@dataclass(frozen=True)
class Series:
    """Points of one kind. `role` chooses colour and marker: right, wrong, hard, easy, all, or a token's class."""

    label: str
    role: str
    x: tuple[Any, ...]  # numbers, or names
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @classmethod
    def by_loop(cls, label: str, role: str, found: Sequence[Estimate | None]) -> Series | None:
        """One figure a loop, with its interval; None where no loop has one."""
        known = {float(loop): each for loop, each in enumerate(found, start=1) if each is not None}
        return cls.at(label, role, known) if known else None

    @classmethod
    def at(cls, label: str, role: str, known: dict[float, Estimate]) -> Series:
        """Figures by their x; one without an interval has its value for both ends."""
        lows = tuple(each.value if each.low is None else each.low for each in known.values())
        highs = tuple(each.value if each.high is None else each.high for each in known.values())
        return cls(label, role, tuple(known), tuple(each.value for each in known.values()), lows, highs)


@dataclass(frozen=True)
class Band:
    """A stretch of the x axis (or of the y axis) that the paper names."""

    start: float
    end: float
    label: str
    axis: Literal["x", "y"] = "x"


@dataclass(frozen=True)
class Panel:
    """lines: with intervals, over loops. steps: histograms with bins of equal width starting at x. bars: one for each
    series. groups: bars side by side over whole numbers. ranking: horizontal bars by name, coloured by their role."""

    kind: Literal["lines", "steps", "bars", "groups", "ranking"]
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What the paper says, whether it is so here, and the sentence that says so with our figures."""

    claim: str
    verdict: Verdict
    found: str

    @property
    def sentence(self) -> str:
        return f"{self.found} The paper's claim, that {self.claim}, {self.verdict} here."


@dataclass(frozen=True)
class Result:
    table: Table
    finding: Finding
    panels: tuple[Panel, ...] = ()
    examples: tuple[Parting, ...] = ()
    notes: tuple[str, ...] = ()  # how something was counted, scaled or left out
    settings: dict[str, Any] = field(default_factory=dict)  # of this element, beside those of the laboratory


@dataclass(frozen=True)
class Page:
    """What all renderers are given: a result with its element's name and everything that it was made with."""

    name: str
    title: str
    result: Result
    settings: dict[str, Any]  # of the laboratory, with the element's own
    command: str  # that makes it

    @property
    def settings_line(self) -> str:
        return "; ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in self.settings.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def above(estimate: Estimate | None) -> Verdict:
    """Whether a figure, where there is one, is larger than 0."""
    return "is undecided" if estimate is None else estimate.above(0)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim of several parts."""
    kinds = set(verdicts)
    if len(kinds) == 1:
        return kinds.pop()
    if kinds & {"holds", "holds in part"}:
        return "holds in part"
    return "does not hold"  # some part does not, the others are undecided


def verdict_of(holds: bool) -> Verdict:
    return "holds" if holds else "does not hold"
