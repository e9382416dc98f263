"""`loopcd reproduce`: run or reuse what the elements need, compute them, and write their files and the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loopcd.analysis.elements import ELEMENTS, elements
from loopcd.analysis.laboratory import Laboratory
from loopcd.analysis.rendering.files import index, json_text, markdown, points_csv
from loopcd.analysis.rendering.html import report
from loopcd.analysis.rendering.pictures import draw, draw_texts
from loopcd.analysis.result import Page
from loopcd.evaluation.session import Session
from loopcd.evaluation.store import write_whole

DEFAULT_LIMIT = 200  # word problems; the paper's benchmarks are run whole unless a limit is given
REPORT, INDEX = "report.html", "README.md"
TITLE = "LoopCD: the paper's tables and figures"


def limited(session: Session) -> int | None:
    """Items to run where the user did not say."""
    return DEFAULT_LIMIT if session.limit is None and session.task.startswith("steps") else session.limit


def reproduce(wanted: str, lab: Laboratory, out: Path, command: Callable[[str], str]) -> list[Page]:
    """Elements by name, with commas between them, or "all". `command` gives the command line that makes one of them."""
    chosen = elements(wanted)
    out.mkdir(parents=True, exist_ok=True)
    _check_ours(out)
    lab.prepare([each for element in chosen.values() for each in element.wanted(lab)])
    pages: list[Page] = []
    pictures: dict[str, bytes] = {}
    for name, element in chosen.items():
        result = element.compute(lab)
        pages.append(Page(name, element.title, result, {**lab.settings(), **result.settings}, command(name)))
        if result.panels or result.examples:
            pictures[name], png = draw(result.panels) if result.panels else draw_texts(result.examples)
            write_whole(out / f"{name}.svg", pictures[name])
            write_whole(out / f"{name}.png", png)
        if result.panels:
            write_whole(out / f"{name}.points.csv", points_csv(result.panels))
        write_whole(out / f"{name}.md", markdown(pages[-1], f"{name}.svg" if name in pictures else None))
        write_whole(out / f"{name}.csv", result.table.csv())
        write_whole(out / f"{name}.json", json_text(pages[-1]))
    title = f"{TITLE} with {lab.engine.name} on {lab.task().name}"
    before = [name for name in ELEMENTS if name not in chosen and (out / f"{name}.md").exists()]
    write_whole(out / INDEX, index(pages, title, command(wanted), before))
    write_whole(out / REPORT, report(pages, pictures, title))
    return pages


def _check_ours(out: Path) -> None:
    """Nothing is written over files that no reproduction made."""
    ours = (out / INDEX).is_file() and (out / INDEX).read_text(errors="replace").startswith(f"# {TITLE}")
    for name in () if ours else (INDEX, REPORT):
        if (out / name).exists():
            raise ValueError(f"{out} holds {name}, which is no reproduction's: use another --out")
