"""Results as Markdown, JSON and CSV. What a model wrote stands in code blocks or is escaped, so that it cannot become markup.

JSON and CSV have full digits, fractions, and intervals in fields of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from loopcd.analysis.result import Page, Panel
from loopcd.evaluation.partings import Parting, markdown_lines
from loopcd.evaluation.table import Estimate, Table, csv_text, finite


def markdown(page: Page, picture: str | None = None) -> str:
    """`picture` is the file of the figure, beside this one."""
    result = page.result
    lines = [f"# {page.title}", "", f"**{result.finding.sentence}**", ""]
    if picture is not None:
        lines += [f"![{page.title}]({picture})", ""]
    lines += [result.table.markdown(), ""]
    if any(isinstance(cell, Estimate) and cell.low is not None for row in result.table.rows for cell in row):
        lines.append("Brackets: 95 % intervals.\n")
    lines += [f"{note}\n" for note in result.notes]
    for example in result.examples:
        lines += markdown_lines(example)
    lines += [f"Settings: {page.settings_line}.", "", f"Made by `{page.command}`."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def index(pages: Sequence[Page], title: str, command: str, before: Sequence[str] = ()) -> str:
    """A list of all pages with what was found, and the names of others that were there `before`."""
    lines = [f"# {title}", "", f"Made by `{command}`. Settings: {pages[0].settings_line}.", ""]
    findings = [(f"[{page.title}]({page.name}.md)", page.result.finding) for page in pages]
    rows = [(link, finding.claim, finding.verdict, finding.found) for link, finding in findings]
    lines.append(Table.of("", ("", "the paper's claim", "here", "found"), rows, words=range(4)).markdown())
    if before:
        lines += ["", f"From earlier runs, which may have had other settings: {', '.join(f'[{x}]({x}.md)' for x in before)}."]
    return "\n".join(lines) + "\n"


def json_text(page: Page) -> str:
    """Numbers that JSON cannot hold (a ratio without a bound) are null."""
    result = page.result
    found: dict[str, Any] = {
        "element": page.name,
        "title": page.title,
        "finding": {**asdict(result.finding), "sentence": result.finding.sentence},
        "columns": [asdict(each) for each in result.table.columns],
        "rows": result.table.records(),
        "notes": list(result.notes),
        "settings": page.settings,
        "command": page.command,
    }
    if result.panels:
        found["panels"] = [_panel(panel) for panel in result.panels]
    if result.examples:
        found["examples"] = [_example(example) for example in result.examples]
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def points_csv(panels: Iterable[Panel]) -> str:
    """What a figure shows, point by point."""
    rows: list[list[Any]] = [["panel", "series", "x", "y", "low", "high"]]
    for panel in panels:
        for series in panel.series:
            for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                interval = [series.low[place], series.high[place]] if series.low else [None, None]
                rows.append([panel.title, series.label, x, y, *interval])
    return csv_text(rows)


def _panel(panel: Panel) -> dict[str, Any]:
    found = asdict(panel)
    for series in found["series"]:
        del series["role"]
        series |= {name: [finite(y) for y in series[name]] for name in ("y", "low", "high")}
    return found


def _example(example: Parting) -> dict[str, Any]:
    return {
        "item": example.item.id,
        "question": example.question,
        "gold": str(example.item.gold),
        "method": example.other.method,
        "greedy": [asdict(piece) for piece in example.greedy.pieces],
        "greedy_right": example.greedy.right,
        "other": [asdict(piece) for piece in example.other.pieces],
        "other_right": example.other.right,
    }
