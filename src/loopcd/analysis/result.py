"""What an element of the paper comes to: a table, perhaps a picture or texts, and a finding. No drawing happens here.

All shares and accuracies are fractions; the renderers show them as percentages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from loopcd.evaluation.partings import Parting
from loopcd.evaluation.statistics import Comparison, Share

# percent: a fraction, shown in percent. points: a difference of fractions, shown signed. times: a ratio.
Unit = Literal["text", "count", "percent", "points", "times", "number"]
Verdict = Literal["holds", "holds in part", "does not hold", "is undecided"]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, share: Share) -> Estimate:
        return cls(share.accuracy, share.low, share.high)

    @classmethod
    def difference(cls, comparison: Comparison) -> Estimate:
        return cls(comparison.difference, comparison.low, comparison.high)

    def above(self, bound: float) -> Verdict:
        """Whether this is larger than the bound: undecided where the interval holds the bound."""
        if self.low is None or self.high is None or not isfinite(self.low) or not isfinite(self.high):
            return "is undecided"
        return "holds" if self.low > bound else "does not hold" if self.high < bound else "is undecided"


Cell = str | int | float | Estimate | None


@dataclass(frozen=True)
class Column:
    key: str  # in JSON and CSV
    heading: str  # for people
    unit: Unit = "text"


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"a row has {len(wrong[0])} cells, but the table has {len(self.columns)} columns: {wrong[0]!r}")


@dataclass(frozen=True)
class Series:
    """Points of one kind. `role` chooses colour and marker: right, wrong, hard, easy, all, or a token's class."""

    label: str
    role: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


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
