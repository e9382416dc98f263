"""The arithmetic on docs/paper.md."""

import re
from pathlib import Path

from loopcd.bench.paper import BENCHMARKS, GPUS, PUBLISHED, decode_hours, row_bytes
from loopcd.evaluation import paper
from loopcd.models.presets import PUBLIC, empty_model

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
MODELS = {name: empty_model(PUBLIC[public]()) for name, public in PUBLISHED.items()}


def table(mark: str) -> dict[str, list[float]]:
    """Numbers by the row's name, of the table that follows the mark."""
    lines = PAGE.partition(f"<!-- {mark} -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: [float(cell) for cell in cells] for name, *cells in rows}


def test_the_hours_are_those_of_the_bytes() -> None:
    bandwidth = GPUS["A100 80 GB"]
    hours = {
        task: [decode_hours(model, benchmark, batch, bandwidth) for model in MODELS.values() for batch in (1, 16)]
        for task, benchmark in BENCHMARKS.items()
    }
    hours["all"] = [sum(column) for column in zip(*hours.values(), strict=True)]
    assert table("hours") == {task: [round(each, 2) for each in row] for task, row in hours.items()}


def test_the_memory_is_that_of_the_longest_row() -> None:
    assert table("memory") == {
        name: [round(row_bytes(model, benchmark) / 1e9, 2) for benchmark in BENCHMARKS.values()]
        for name, model in MODELS.items()
    }


def test_settings_and_figures_are_the_papers() -> None:
    lines = [line for line in PAGE.splitlines() if re.search(r"\| (Huginn-0125|Ouro-1.4B) \| \d, ", line)]
    tasks = [task for task in paper.SHOWN for _ in MODELS]
    for line, task in zip(lines, tasks, strict=True):
        _, model, setting, greedy, contrasted = [cell.strip() for cell in line.strip("|").split("|")]
        public = PUBLISHED[model]
        used = paper.setting(public, task)
        assert setting == f"{used.amateur_loop}, {used.strength}"
        theirs = [paper.beside(public, task, "greedy"), paper.beside(public, task, "loopcd", used)]
        assert [greedy, contrasted] == [" / ".join(f"{figure:.2f}" for figure in each.values()) for each in theirs]
