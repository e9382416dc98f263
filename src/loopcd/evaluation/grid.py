"""Tables of text: every table of the package becomes Markdown, or a table on the terminal, here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Grid:
    """Headings and rows of text. Columns of `words` stand to the left, all others, of numbers, to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[int] = (0,)

    def lines(self) -> list[str]:
        """As Markdown. What a cell holds is the caller's to escape."""
        marks = ["---" if place in self.words else "---:" for place in range(len(self.columns))]
        return [f"| {' | '.join(cells)} |" for cells in (self.columns, marks, *self.rows)]

    def markdown(self) -> str:
        return "\n".join(self.lines())

    def rich(self) -> Any:
        """For the terminal."""
        from rich.table import Table

        table = Table(title=self.title)
        for place, heading in enumerate(self.columns):
            table.add_column(heading, justify="left" if place in self.words else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table
