"""Files made of results: right, the same every time, and safe whatever a model wrote."""

import csv
import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from math import inf, nan

import pytest

from loopcd.analysis.rendering.files import json_text, markdown, points_csv
from loopcd.analysis.rendering.html import report
from loopcd.analysis.rendering.pictures import draw, draw_texts
from loopcd.analysis.result import Band, Finding, Page, Panel, Result, Series
from loopcd.evaluation.partings import Parting, Side, pieces
from loopcd.evaluation.table import Column, Estimate, Table
from loopcd.evaluation.task import Item

HOSTILE = '</pre><script>alert(1)</script><img src="http://evil.example/x.png" onerror=alert(2)> $x^2$ | ``` 漢字 & "quoted"'


def example(before: str = HOSTILE, after: str = "fine") -> Parting:
    left, right = pieces(before, after)
    return Parting(Item(HOSTILE, HOSTILE, HOSTILE), HOSTILE, Side("greedy", True, left), Side(HOSTILE, False, right))


PANELS = (
    Panel("lines", "Lines", "loop", "margin", (Series("easy", "easy", (1.0, 2.0), (3.0, 4.0), (2.0, 3.0), (4.0, 5.0)),)),
    Panel("steps", "Histogram", "x", "share", (Series("right", "right", (0.0, 0.1), (0.5, 0.5)),)),
    Panel(
        "bars", "Bars", "", "share", (Series("right", "right", (0.0,), (0.1,), (0.2,), (0.3,)),), (Band(0, 1, "paper", "y"),)
    ),
    Panel("groups", "Groups", "loop", "share", tuple(Series(r, r, (1.0, 2.0), (0.5, 0.5)) for r in ("hard", "all"))),
    Panel("ranking", "Ranking", "hard", "", (Series("word", "word", (HOSTILE, "$b"), (3.0, 1.0)),)),
)


def page(own: str = HOSTILE) -> Page:
    """What comes from a model is hostile; what we write ourselves is `own`."""
    table = Table(
        (
            Column("name", "name"),
            Column("share", "share", "percent"),
            Column("gain", "gain", "points"),
            Column("n", "n", "count"),
        ),
        ((HOSTILE, Estimate(0.25, 0.2, 0.3), Estimate(-0.01, -inf, nan), 1234), ("b", None, 0.02, None)),
    )
    result = Result(table, Finding("it is so", "holds in part", own), PANELS, (example(),), (own,))
    return Page("fig9", own, result, {"model": own}, own)


class Reader(HTMLParser):
    """Collects tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


def test_the_report_needs_nothing_but_itself_and_runs_nothing() -> None:
    svg, _ = draw(PANELS)
    found = read(report([page()], {"fig9": svg}, HOSTILE))
    assert {"script", "link", "iframe", "object", "embed", "base", "form", "svg"}.isdisjoint(found.tags)
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    addresses = [(tag, value) for tag, name, value in found.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert addresses and all(value.startswith(("#", "data:image/svg+xml;base64,")) for _, value in addresses)
    assert "url(" not in "".join(found.texts) and "@import" not in "".join(found.texts)
    policies = [
        value for tag, name, value in found.attributes if tag == "meta" and name == "content" and "default-src" in value
    ]
    assert policies and "default-src 'none'" in policies[0]


def test_what_a_model_wrote_is_shown_as_it_is() -> None:
    found = read(report([page()], {}, "report"))
    assert HOSTILE in found.texts or HOSTILE in "".join(found.texts)
    assert found.tags.count("img") == 0


def test_what_acts_on_the_display_is_shown_as_a_mark() -> None:
    side = Side("greedy", True, ())
    backwards = Parting(Item("a\u202eb", "", "\u2066c"), "who\x1b[2J\u202e?", side, side)
    text = report([replace(page(), result=replace(page().result, examples=(backwards,)))], {}, "report")
    assert "who·[2J·?" in text and "a·b" in text and "·c" in text
    assert not set("\x1b\u202e\u2066") & set(text)


def test_json_and_csv_read_back() -> None:
    found = json.loads(json_text(page()))
    assert found["rows"][0] == {
        "name": HOSTILE,
        "share": {"value": 0.25, "low": 0.2, "high": 0.3},
        "gain": {"value": -0.01, "low": None, "high": None},
        "n": 1234,
    }
    assert found["finding"]["verdict"] == "holds in part" and len(found["panels"]) == len(PANELS)
    assert "".join(piece["text"] for piece in found["examples"][0]["greedy"]) == HOSTILE
    first, *rows = csv.reader(io.StringIO(page().result.table.csv()))
    assert first == ["name", "share", "share_low", "share_high", "gain", "gain_low", "gain_high", "n"]
    assert rows[0][:4] == [HOSTILE, "0.25", "0.2", "0.3"] and rows[1] == ["b", "", "", "", "0.02", "", "", ""]
    points = list(csv.DictReader(io.StringIO(points_csv(PANELS))))
    assert points[0] == {"panel": "Lines", "series": "easy", "x": "1.0", "y": "3.0", "low": "2.0", "high": "4.0"}


def test_markdown_cells_and_texts_cannot_become_markup() -> None:
    text = markdown(page("Our own words."), "fig9.svg")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)
    fenced = text.split("```")
    assert len(fenced) % 2 == 1
    outside = "".join(fenced[::2])
    assert "<script>" not in outside.replace("\\<script\\>", "")
    assert "25.00 [20.00, 30.00]" in text and "![" in text and "1,234" in text


def test_the_same_numbers_give_the_same_picture() -> None:
    (svg, png), (again, _) = draw(PANELS), draw(PANELS)
    assert svg == again and png.startswith(b"\x89PNG")
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert b"<dc:date>" not in svg and b"matplotlib.org" not in svg.lower().replace(b"matplotlib v", b"")
    assert [each for each in root.iter() if each.tag.endswith("script")] == []


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("before", [HOSTILE, "a" * 500, "", "one\n\n\ntwo", "word " * 400, "é\u0301\u200b\U0001f600"])
def test_texts_side_by_side_can_always_be_drawn(before: str) -> None:
    svg, png = draw_texts([example(before)])
    assert ET.fromstring(svg).tag.endswith("svg") and png.startswith(b"\x89PNG")
    assert draw_texts([example(before)])[0] == svg


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(PANELS[:1])
    assert dict(matplotlib.rcParams) == before
