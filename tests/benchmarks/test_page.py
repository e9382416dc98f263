"""The page and its picture, from a tiny run."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from benchmarks.page import main, write_report


def test_the_page_holds_the_runs_figures_and_the_formula(found: dict[str, Any], folders: list[str], tmp_path: Path) -> None:
    written = write_report(found, tmp_path / "docs" / "performance.md")
    assert [path.name for path in written] == ["performance.md", "performance-details.md", "performance.svg"]
    text, details = (path.read_text() for path in written[:2])
    ratio = found["ratios"][folders[0]]["1"]["loopcd/greedy"]
    assert f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})" in text
    medians = [told["loopcd/greedy"]["median"] for told in found["ratios"][folders[0]].values()]
    assert "- LoopCD: one text " in text and f"{max(medians):.2f}" in text.split("## Methods")[0]
    assert "(performance.svg)" in text
    assert "(performance-details.md)" in text and "(performance.md)" in details
    assert "(1 − pᵏ) / (1 − p)" in details
    assert "Huginn-0125" in details and "Ouro-1.4B" in details
    assert "A quick run" in text
    assert "Not run:" in text
    assert written[2].read_text().lstrip().startswith("<?xml")


def test_a_table_row_is_as_long_as_its_head(found: dict[str, Any], tmp_path: Path) -> None:
    width, written = None, write_report(found, tmp_path / "p.md")
    for line in [line for path in written[:2] for line in path.read_text().splitlines()]:
        if not line.startswith("|"):
            width = None
            continue
        width = width or line.count(" | ")
        assert line.count(" | ") == width, line


def test_a_run_of_one_part_makes_a_page_too(found: dict[str, Any], tmp_path: Path) -> None:
    part = {key: found[key] for key in ("machine", "decode", "quick")} | {"ratios": {}, "models": {}}
    text, details, _ = (path.read_text() for path in write_report(part, tmp_path / "p.md"))
    assert "## Methods" not in text
    assert "share of limit" in details


def test_the_same_run_gives_the_same_files(found: dict[str, Any], tmp_path: Path) -> None:
    once, again = (write_report(found, tmp_path / name / "p.md") for name in ("a", "b"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]


def test_a_stored_run_is_made_a_page(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(found))
    done = CliRunner().invoke(main, [str(tmp_path / "run.json"), "--out", str(tmp_path / "page.md")])
    assert done.exit_code == 0, done.output
    assert "What LoopCD costs" in (tmp_path / "page-details.md").read_text() and (tmp_path / "page.svg").is_file()
