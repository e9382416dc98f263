"""`loopcd reproduce`: run or reuse what the elements need, compute them, and write their files and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopcd.analysis.elements import Element, elements
from loopcd.analysis.laboratory import Laboratory
from loopcd.analysis.rendering.files import index, json_text, markdown, points_csv
from loopcd.analysis.rendering.html import report
from loopcd.analysis.rendering.pictures import draw, draw_texts
from loopcd.analysis.result import Page
from loopcd.evaluation.session import Session
from loopcd.evaluation.store import write_whole

DEFAULT_LIMIT = 200  # word problems; the paper's benchmarks are run whole unless a limit is given
REPORT = "report.html"


@dataclass(frozen=True)
class Reproduction:
    pages: tuple[Page, ...]
    files: tuple[Path, ...]
    report: Path


def limited(session: Session) -> int | None:
    """Items to run where the user did not say."""
    return DEFAULT_LIMIT if session.limit is None and session.task.startswith("steps") else session.limit


def reproduce(
    wanted: str, lab: Laboratory, out: Path, command: Callable[[str], str], begun: Callable[[Element], None] | None = None
) -> Reproduction:
    """Elements by name, with commas between them, or "all". `command` gives the command line that makes one of them."""
    chosen = elements(wanted)
    out.mkdir(parents=True, exist_ok=True)
    needed = [each for element in chosen for each in element.wanted(lab)]
    lab.tally.expected = lab.count(needed)
    lab.prepare(needed)
    pages: list[Page] = []
    files: list[Path] = []
    pictures: dict[str, bytes] = {}
    for element in chosen:
        if begun is not None:
            begun(element)
        result = element.compute(lab)
        pages.append(Page(element.name, element.title, result, {**lab.settings(), **result.settings}, command(element.name)))
        files += write_page(pages[-1], out, pictures)
    title = f"LoopCD: the paper's tables and figures with {lab.engine.name} on {lab.task().name}"
    files.append(write_whole(out / "README.md", index(pages, title, command(wanted))))
    files.append(write_whole(out / REPORT, report(pages, pictures, title)))
    return Reproduction(tuple(pages), tuple(files), out / REPORT)


def write_page(page: Page, out: Path, pictures: dict[str, bytes]) -> list[Path]:
    """NAME.md, .csv and .json, and for a figure NAME.svg, .png and .points.csv; the SVG is put among `pictures`."""
    result, files = page.result, []
    if result.panels or result.examples:
        svg, png = draw(result.panels) if result.panels else draw_texts(result.examples)
        pictures[page.name] = svg
        files += [write_whole(out / f"{page.name}.svg", svg), write_whole(out / f"{page.name}.png", png)]
    if result.panels:
        files.append(write_whole(out / f"{page.name}.points.csv", points_csv(result.panels)))
    picture = f"{page.name}.svg" if page.name in pictures else None
    files.append(write_whole(out / f"{page.name}.md", markdown(page, picture)))
    files.append(write_whole(out / f"{page.name}.csv", result.table.csv()))
    files.append(write_whole(out / f"{page.name}.json", json_text(page)))
    return files


def summary(pages: Sequence[Page]) -> dict[str, dict[str, str]]:
    """Verdicts and sentences by element, for `--json`."""
    found = {page.name: page.result.finding for page in pages}
    return {name: {"verdict": finding.verdict, "sentence": finding.sentence} for name, finding in found.items()}
