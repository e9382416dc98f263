"""Tables: made once, of columns and rows, and shown on the terminal, as Markdown, as CSV or as JSON. All of the package's."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, isinf, isnan
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from loopcd.evaluation.statistics import Comparison, Share

# percent: a fraction, shown in percent. points: a difference of fractions, shown signed. times: a ratio.
# text: words, of whoever they are. markup: words of our own, which may be Markdown. figure: numbers that are text already.
Unit = Literal["text", "markup", "figure", "count", "percent", "points", "times", "number"]
Verdict = Literal["holds", "holds in part", "does not hold", "is undecided"]
_FIGURES: dict[Unit, tuple[int, str]] = {  # of numbers that are no counts: times what they are shown, and how
    "percent": (100, "{:.2f}"),
    "points": (100, "{:+.2f}"),
    "times": (1, "{:.2f}×"),
    "number": (1, "{:.3f}"),
}
NOTHING = "–"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


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

    @property
    def words(self) -> bool:
        """Whether it stands to the left; figures stand to the right."""
        return self.unit in ("text", "markup")

    @property
    def titled(self) -> str:
        """The heading with the unit, unless it says it."""
        return self.heading + {"percent": " (%)", "points": " (points)"}.get(self.unit, "")


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""  # below it, on the terminal

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"a row has {len(wrong[0])} cells, but the table has {len(self.columns)} columns: {wrong[0]!r}")

    @classmethod
    def of(
        cls, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[int] = (0,), note: str = ""
    ) -> Table:
        """Of what is text already: columns of `words`, all others of figures. Markdown in it is taken for our own."""
        columns = tuple(Column(each, each, "markup" if place in words else "figure") for place, each in enumerate(headings))
        return cls(columns, tuple(tuple(row) for row in rows), title, note)

    def texts(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [[shown(cell, column.unit) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """What others wrote is escaped, so that it cannot become markup."""
        headings = [_marked(each.titled, each) for each in self.columns]
        marks = ["---" if each.words else "---:" for each in self.columns]
        body = [[_marked(cell, column) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, marks, *body))

    def rich(self, unbroken: Collection[int] = ()) -> Any:
        """For the terminal. No cell of the columns `unbroken` is spread over several lines."""
        from rich.table import Table as Drawn

        drawn = Drawn(title=self.title, caption=self.note or None, caption_justify="left")
        for place, column in enumerate(self.columns):
            side = "left" if column.words else "right"
            drawn.add_column(column.heading, justify=side, overflow="fold", no_wrap=place in unbroken)
        for row in self.texts():
            drawn.add_row(*row)
        return drawn

    def csv(self) -> str:
        """Full digits, fractions. A column with intervals is three: NAME, NAME_low, NAME_high."""
        wide = [any(isinstance(row[place], Estimate) for row in self.rows) for place in range(len(self.columns))]
        names = [
            name
            for column, intervals in zip(self.columns, wide, strict=True)
            for name in ([column.key, f"{column.key}_low", f"{column.key}_high"] if intervals else [column.key])
        ]
        rows = [
            [part for cell, intervals in zip(row, wide, strict=True) for part in (_parts(cell) if intervals else [cell])]
            for row in self.rows
        ]
        return csv_text([names, *rows])

    def records(self) -> list[dict[str, Any]]:
        """The rows for JSON; numbers that it cannot hold (a ratio without a bound) are None."""
        return [{column.key: _value(cell) for column, cell in zip(self.columns, row, strict=True)} for row in self.rows]


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def shown(cell: Cell, unit: Unit) -> str:
    """As in "36.62 [34.07, 39.26]"; percentages and points are shown times a hundred."""
    if cell is None:
        return NOTHING
    if not isinstance(cell, Estimate):
        return cell if isinstance(cell, str) else figure(cell, unit)
    told = figure(cell.value, unit)
    if cell.low is None or cell.high is None:
        return told
    return f"{told} [{figure(cell.low, unit)}, {figure(cell.high, unit)}]"


def figure(value: float, unit: Unit) -> str:
    if isnan(value):
        return NOTHING
    if isinf(value):
        return "∞" if value > 0 else "−∞"
    if unit not in _FIGURES:
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    factor, form = _FIGURES[unit]
    return form.format(factor * value)


def _marked(cell: Cell, column: Column) -> str:
    if isinstance(cell, str) and column.unit not in ("markup", "figure"):
        return escaped(cell)
    return one_line(shown(cell, column.unit)).replace("|", "\\|")  # our own markup keeps within its cell too


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", one_line(text)).strip() if text.strip() else text


def one_line(text: str) -> str:
    return " ".join(text.splitlines())


def finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _parts(cell: Cell) -> list[Any]:
    return [cell.value, cell.low, cell.high] if isinstance(cell, Estimate) else [cell, None, None]


def _value(cell: Cell) -> Any:
    if isinstance(cell, Estimate):
        return {"value": finite(cell.value), "low": finite(cell.low), "high": finite(cell.high)}
    return finite(cell) if isinstance(cell, float) else cell
