"""The page as a file: one piece, small, closed to the world, and data that stays data."""

import json
import re
import runpy
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loopcd.lens import page as pages
from loopcd.lens.page import SOURCES, VENDOR, as_data, bundled, write_page


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is not None:  # inside a script or a style
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)


@pytest.mark.parametrize("asked", ["--help", "--nonsense"])
def test_the_builder_takes_no_option_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["build", asked])
    with pytest.raises(SystemExit):
        runpy.run_module("loopcd.lens.build", run_name="__main__")
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_small_and_asks_for_nothing_else() -> None:
    text = write_page({"examples": []})
    assert len(text.encode()) < 500_000
    elements = Elements(text).found
    fetched = [(tag, name) for tag, given, _ in elements for name in given if name in ("src", "srcset", "action", "background")]
    assert fetched == []
    assert [given["href"] for _, given, _ in elements if "href" in given] == ["data:,"]
    assert "@import" not in text and not re.search(r"url\(", text)


def test_the_policy_allows_exactly_the_scripts_and_styles_of_the_page() -> None:
    elements = Elements(write_page({"examples": []})).found
    policy = next(given["content"] or "" for tag, given, _ in elements if given.get("http-equiv") == "Content-Security-Policy")
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        texts = [text for found, given, text in elements if found == tag and given.get("type") != "application/json"]
        hashes = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts]
        assert allowed[name].split() == hashes
    assert allowed["default-src"] == "'none'"
    assert "unsafe" not in policy


def test_no_text_ends_the_element_that_holds_the_data() -> None:
    hostile = {"prompt": "</script><script>alert(1)</script><!-- ]]> &lt; \u2028", "examples": []}
    text = write_page(hostile)
    stored = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert [json.loads(each) for each in stored] == [hostile]
    assert not re.search(r"[<>&\u2028]", as_data(hostile))


def test_every_source_is_in_the_page_and_the_library_is_as_it_came() -> None:
    text = write_page({"examples": []})
    for path in SOURCES.glob("*.js"):
        assert f'modules["{path.name}"] = ' in text, path.name
    library = (VENDOR / "uPlot.iife.min.js").read_text(encoding="utf-8")
    assert library in text and library.startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
    assert sha256(library.encode()).hexdigest() == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert (VENDOR / "uPlot.LICENSE").read_text(encoding="utf-8") in text


def test_modules_come_after_what_they_import(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SOURCES", tmp_path)
    (tmp_path / "main.js").write_text('import { two } from "./b.js";\nimport { one } from "./a.js";\none(two);\n')
    (tmp_path / "a.js").write_text("export function one(x) {}\n")
    (tmp_path / "b.js").write_text('import { one } from "./a.js";\nexport const two = one(1);\n')
    order = re.findall(r'^modules\["(\w+)\.js"\] = ', bundled("main.js"), re.MULTILINE)
    assert order == ["a", "b", "main"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('import { x } from "./main.js";\n', "circle"),
        ('import x from "./a.js";\n', "only"),
        ("const x = 1;\nexport { x };\n", "only"),
    ],
)
def test_what_cannot_be_bundled_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setattr(pages, "SOURCES", tmp_path)
    (tmp_path / "main.js").write_text(text)
    (tmp_path / "a.js").write_text("")
    with pytest.raises(ValueError, match=said):
        bundled("main.js")


def test_no_source_interprets_text_as_markup() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|srcdoc|javascript:"
    for path in SOURCES.glob("*.js"):
        assert not re.search(forbidden, path.read_text(encoding="utf-8")), path.name
