"""Results as Markdown. What a model wrote stands in code blocks or is escaped, so that it cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from loopcd.analysis.rendering.cells import heading, shown
from loopcd.analysis.rendering.page import Page
from loopcd.analysis.result import Cell, Table, Unit
from loopcd.evaluation.grid import Grid
from loopcd.evaluation.partings import Parting, Piece

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown(page: Page, picture: str | None = None) -> str:
    """`picture` is the file of the figure, beside this one."""
    result = page.result
    lines = [f"# {page.title}", "", f"**{result.finding.sentence}**", ""]
    if picture is not None:
        lines += [f"![{page.title}]({picture})", ""]
    lines += [*table_lines(result.table), ""]
    intervals = ("Brackets: 95 % intervals.",) if _has_intervals(result.table) else ()
    lines += [f"{note}\n" for note in (*intervals, *result.notes)]
    for example in result.examples:
        lines += example_lines(example)
    lines += [f"Settings: {page.settings_line}.", "", f"Made by `{page.command}`."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def index(pages: Sequence[Page], title: str, command: str) -> str:
    """A list of all pages with what was found."""
    lines = [f"# {title}", "", f"Made by `{command}`. Settings: {pages[0].settings_line}.", ""]
    findings = [(f"[{page.title}]({page.name}.md)", page.result.finding) for page in pages]
    rows = [(link, finding.claim, finding.verdict, finding.found) for link, finding in findings]
    lines += Grid("", ("", "the paper's claim", "here", "found"), rows, words=range(4)).lines()
    return "\n".join(lines) + "\n"


def table_lines(table: Table) -> list[str]:
    headings = [escaped(heading(column.heading, column.unit)) for column in table.columns]
    body = [[_cell(cell, column.unit) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    words = [place for place, column in enumerate(table.columns) if column.unit == "text"]
    return Grid("", headings, body, words).lines()


def _cell(cell: Cell, unit: Unit) -> str:
    return escaped(cell) if isinstance(cell, str) else shown(cell, unit)


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.splitlines())).strip() if text.strip() else text


def _has_intervals(table: Table) -> bool:
    return any("[" in shown(cell, "number") for row in table.rows for cell in row if not isinstance(cell, str))


def example_lines(example: Parting) -> list[str]:
    """Both texts in code blocks; what differs stands between ⟦ and ⟧."""
    lines = [f"## {escaped(example.item.id)}, right answer {escaped(str(example.item.gold))}", ""]
    lines += [f"> {escaped(line)}" for line in example.question.splitlines()]
    sides: Iterable[tuple[str, bool, Sequence[Piece]]] = (
        ("greedy", example.greedy_right, example.greedy),
        (example.method, example.other_right, example.other),
    )
    for name, right, pieces in sides:
        told = "".join(f"⟦{piece.text}⟧" if piece.differs else piece.text for piece in pieces)
        lines += ["", f"{escaped(name)} ({'right' if right else 'wrong'}):", ""]
        lines += ["```text", *told.replace("```", "'''").splitlines(), "```", ""]
    return lines
