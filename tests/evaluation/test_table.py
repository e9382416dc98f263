"""The one maker of tables: the same rows on the terminal, as Markdown, as CSV and as JSON."""

import csv
import io
from math import inf, nan

import pytest
from rich.console import Console

from loopcd.evaluation.table import Cell, Column, Estimate, Table, Unit, shown

TABLE = Table(
    (Column("name", "name"), Column("share", "share", "percent"), Column("ratio", "ratio", "times"), Column("n", "n", "count")),
    (("a | b", Estimate(0.25, 0.2, 0.3), Estimate(2.0, 1.0, inf), 1234), ("c", None, None, 5)),
    title="Shares",
    note="Below.",
)


def printed(drawn: object) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(drawn)
    return console.export_text()


def test_the_same_figures_in_every_form() -> None:
    texts = [["a | b", "25.00 [20.00, 30.00]", "2.00× [1.00×, ∞]", "1,234"], ["c", "–", "–", "5"]]
    assert TABLE.texts() == texts
    heading, marks, first, second = TABLE.markdown().splitlines()
    assert (heading, marks) == ("| name | share (%) | ratio | n |", "| --- | ---: | ---: | ---: |")
    assert first == f"| a \\| b | {' | '.join(texts[0][1:])} |" and second == "| c | – | – | 5 |"
    terminal = printed(TABLE.rich())
    assert all(text in terminal for row in texts for text in row) and "Shares" in terminal and "Below." in terminal
    names, *rows = csv.reader(io.StringIO(TABLE.csv()))
    assert names == ["name", "share", "share_low", "share_high", "ratio", "ratio_low", "ratio_high", "n"]
    assert rows == [["a | b", "0.25", "0.2", "0.3", "2.0", "1.0", "inf", "1234"], ["c", *[""] * 6, "5"]]
    assert TABLE.records()[0] == {
        "name": "a | b",
        "share": {"value": 0.25, "low": 0.2, "high": 0.3},
        "ratio": {"value": 2.0, "low": 1.0, "high": None},
        "n": 1234,
    }


def test_what_is_text_already_is_shown_as_it_is() -> None:
    table = Table.of("Runs", ("run", "ratio", "found"), [("[a](a.md)", "1.02 (0.98–1.05)", "yes")], words=(0, 2))
    assert table.markdown().splitlines()[1:] == ["| --- | ---: | --- |", "| [a](a.md) | 1.02 (0.98–1.05) | yes |"]
    assert table.rich().columns[1].justify == "right" and table.rich().columns[2].justify == "left"


def test_what_is_text_already_keeps_within_its_cell() -> None:
    table = Table.of("", ("method", "n"), [("mti:negative_prompt=a|b\nc", "1")])
    assert table.markdown().splitlines()[2:] == ["| mti:negative_prompt=a\\|b c | 1 |"]


def test_a_column_may_be_kept_whole() -> None:
    drawn = Table.of("", ("method", "accuracy"), [("greedy", "1")]).rich(unbroken=(0,))
    assert [column.no_wrap for column in drawn.columns] == [True, False]


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells, but the table has 2 columns"):
        Table.of("", ("a", "b"), [("only",)])


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (None, "percent", "–"),
        (0.3321, "percent", "33.21"),
        (Estimate(0.012, -0.004, 0.028), "points", "+1.20 [-0.40, +2.80]"),
        (Estimate(1.94), "times", "1.94×"),
        (Estimate(2.0, 1.0, inf), "number", "2.000 [1.000, ∞]"),
        (nan, "number", "–"),
        (12345, "count", "12,345"),
        ("none", "count", "none"),
    ],
)
def test_cells(cell: Cell, unit: Unit, text: str) -> None:
    assert shown(cell, unit) == text
    assert Column("share", "share", "percent").titled == "share (%)"
