"""Cells of a table as text."""

from __future__ import annotations

from math import isinf, isnan

from loopcd.analysis.result import Cell, Estimate, Unit

DIGITS: dict[Unit, int] = {"percent": 2, "points": 2, "times": 2, "number": 3}
NOTHING = "–"


def shown(cell: Cell, unit: Unit) -> str:
    """As in "36.62 [34.07, 39.26]"; percentages and points are shown times a hundred."""
    if cell is None:
        return NOTHING
    if isinstance(cell, Estimate):
        told = figure(cell.value, unit)
        if cell.low is None or cell.high is None:
            return told
        return f"{told} [{figure(cell.low, unit)}, {figure(cell.high, unit)}]"
    if isinstance(cell, str):
        return cell
    return figure(cell, unit)


def figure(value: float, unit: Unit) -> str:
    if isnan(value):
        return NOTHING
    if isinf(value):
        return "∞" if value > 0 else "−∞"
    if unit == "count" or unit == "text":
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    digits = DIGITS[unit]
    if unit == "percent":
        return f"{100 * value:.{digits}f}"
    if unit == "points":
        return f"{100 * value:+.{digits}f}"
    return f"{value:.{digits}f}{'×' if unit == 'times' else ''}"


def heading(text: str, unit: Unit) -> str:
    """A column's heading with its unit, unless the heading says it."""
    return f"{text} (%)" if unit == "percent" else f"{text} (points)" if unit == "points" else text
