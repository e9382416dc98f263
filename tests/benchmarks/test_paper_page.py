"""The arithmetic on docs/paper.md, and what is to be expected of a GPU."""

import re
from pathlib import Path

import pytest

from benchmarks.paper import BENCHMARKS, CONTEXT, GPUS, PUBLISHED, decode_hours, outlooks, row_bytes
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


def test_on_paper_the_published_models_move_what_their_sizes_say() -> None:
    views = outlooks()
    huginn, ouro = views["Huginn-0125"], views["Ouro-1.4B"]
    # 4 layers of 5280 × (4 × 5280 + 3 × 17920) and the adapter, in bfloat16
    assert huginn.traffic.loop == pytest.approx(2 * (4 * 5280 * (4 * 5280 + 3 * 17920) + 2 * 5280**2), rel=1e-3)
    assert ouro.traffic.loop == pytest.approx(2 * 24 * 2048 * (4 * 2048 + 3 * 5632), rel=1e-3)
    assert huginn.traffic.cache == 2 * 2 * (4 + 4 * 32) * CONTEXT * 5280
    assert huginn.limits["H100 SXM"] == pytest.approx(3.35e12 / huginn.traffic.per_token())
    assert ouro.coda == 0 < huginn.coda


def test_drafts_that_are_accepted_more_often_gain_more() -> None:
    for each in outlooks()["Huginn-0125"].by_loops().values():
        assert [x.gain for x in each] == sorted(x.gain for x in each)
        assert [x.length for x in each] == sorted(x.length for x in each)
    assert list(outlooks()["Ouro-1.4B"].by_loops()) == [1, 2]
