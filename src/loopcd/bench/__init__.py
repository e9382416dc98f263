"""How fast, and how much memory: everything as a ratio of things measured alternately in one process."""

from loopcd.bench.compare import Change, compare
from loopcd.bench.parts import PARTS, Settings, merged, run
from loopcd.bench.report import write_report
from loopcd.bench.tables import Table, change_table, tables
from loopcd.bench.timing import Sample, Spread

__all__ = [
    "PARTS",
    "Change",
    "Sample",
    "Settings",
    "Spread",
    "Table",
    "change_table",
    "compare",
    "merged",
    "run",
    "tables",
    "write_report",
]
