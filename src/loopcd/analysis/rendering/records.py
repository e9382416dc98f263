"""Results as JSON and CSV: full digits, fractions, intervals in fields of their own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from math import isfinite
from typing import Any

from loopcd.analysis.rendering.page import Page
from loopcd.analysis.result import Cell, Estimate, Panel, Table
from loopcd.evaluation.partings import Parting


def as_json(page: Page) -> dict[str, Any]:
    """Numbers that JSON cannot hold (a ratio without a bound) are null."""
    result = page.result
    found: dict[str, Any] = {
        "element": page.name,
        "title": page.title,
        "finding": {
            "claim": result.finding.claim,
            "verdict": result.finding.verdict,
            "found": result.finding.found,
            "sentence": result.finding.sentence,
        },
        "columns": [{"key": each.key, "heading": each.heading, "unit": each.unit} for each in result.table.columns],
        "rows": [_row(result.table, row) for row in result.table.rows],
        "notes": list(result.notes),
        "settings": page.settings,
        "command": page.command,
    }
    if result.panels:
        found["panels"] = [_panel(panel) for panel in result.panels]
    if result.examples:
        found["examples"] = [_example(example) for example in result.examples]
    return found


def json_text(page: Page) -> str:
    return json.dumps(as_json(page), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def table_csv(table: Table) -> str:
    """A column with intervals is three: NAME, NAME_low, NAME_high."""
    wide = [any(isinstance(row[place], Estimate) for row in table.rows) for place in range(len(table.columns))]
    names: list[str] = []
    for column, intervals in zip(table.columns, wide, strict=True):
        names += [column.key, f"{column.key}_low", f"{column.key}_high"] if intervals else [column.key]
    rows: list[list[Any]] = []
    for row in table.rows:
        cells: list[Any] = []
        for cell, intervals in zip(row, wide, strict=True):
            cells += _parts(cell) if intervals else [cell]
        rows.append(cells)
    return _csv([names, *rows])


def points_csv(panels: Iterable[Panel]) -> str:
    """What a figure shows, point by point."""
    rows: list[list[Any]] = [["panel", "series", "x", "y", "low", "high"]]
    for panel in panels:
        for series in panel.series:
            for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                interval = [series.low[place], series.high[place]] if series.low else [None, None]
                rows.append([panel.title, series.label, x, y, *interval])
    return _csv(rows)


def _csv(rows: Iterable[list[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _parts(cell: Cell) -> list[Any]:
    return [cell.value, cell.low, cell.high] if isinstance(cell, Estimate) else [cell, None, None]


def _row(table: Table, row: tuple[Cell, ...]) -> dict[str, Any]:
    return {column.key: _value(cell) for column, cell in zip(table.columns, row, strict=True)}


def _value(cell: Cell) -> Any:
    if isinstance(cell, Estimate):
        return {"value": _finite(cell.value), "low": _finite(cell.low), "high": _finite(cell.high)}
    return _finite(cell) if isinstance(cell, float) else cell


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "kind": panel.kind,
        "title": panel.title,
        "x_label": panel.x_label,
        "y_label": panel.y_label,
        "series": [
            {
                "label": each.label,
                "x": list(each.x),
                "y": [_finite(y) for y in each.y],
                "low": [_finite(y) for y in each.low],
                "high": [_finite(y) for y in each.high],
            }
            for each in panel.series
        ],
        "bands": [{"start": each.start, "end": each.end, "label": each.label, "axis": each.axis} for each in panel.bands],
    }


def _example(example: Parting) -> dict[str, Any]:
    def pieces(side: Iterable[Any]) -> list[dict[str, Any]]:
        return [{"text": piece.text, "differs": piece.differs} for piece in side]

    return {
        "item": example.item.id,
        "question": example.question,
        "gold": str(example.item.gold),
        "method": example.method,
        "greedy": pieces(example.greedy),
        "greedy_right": example.greedy_right,
        "other": pieces(example.other),
        "other_right": example.other_right,
    }
