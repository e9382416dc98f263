"""Text that would like to be more than text."""

from pathlib import Path
from typing import Any

import pytest

from hand_traces import hand_trace
from lens.viewing import open_page, overflow
from loopcd.lens import examples_of, export

pytestmark = pytest.mark.slow

HOSTILE = [
    "<script>window.caught = 1</script>",
    "</script><img src=x onerror='window.caught = 1'>",
    "<!--",
    "\u202etxet\u2066",
    "\u05d0\u05d1\u05d2 123",
    "\x00\x07\x1b[31m",
    "\u200b",
    "\u0301\u0301\u0301",
    "{{data}} &amp; &lt;b&gt;",
    "\ud800",
    "\U000e0041",
    "W" * 300,
    "\n",
    "",
]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Two texts that differ in everything, with names, prompts and answers of the same kind."""
    count = len(HOSTILE)
    table = [[[float((v * 7 + t * 3 + loop * 5) % count) for v in range(count)] for loop in range(3)] for t in range(count)]
    facts = {"prompt": "".join(HOSTILE), "model": HOSTILE[0], "extra": {"gold": HOSTILE[1], "item": HOSTILE[0]}}
    greedy = hand_trace(table, list(range(count)), texts=HOSTILE, method=HOSTILE[1], **facts)
    other = hand_trace(table, list(reversed(range(count))), texts=HOSTILE, method="LoopCD(" + HOSTILE[0], **facts)
    path = tmp_path / "a<script>b.html"
    export(path, examples_of([greedy, other])[0], HOSTILE[0])
    return path


def test_no_text_is_interpreted(browser: Any, hostile: Path) -> None:
    with open_page(browser, hostile.as_uri()) as page:
        count = page.locator('.token[data-side="left"]').count()
        assert count == len(HOSTILE)
        for position in range(count):
            page.evaluate("(position) => lens.pick({ side: 'left', position })", position)
        assert page.evaluate("window.caught === undefined")
        assert page.locator("script").count() == 3 and page.locator("img").count() == 0  # library, page, data
        assert page.locator('.token[data-side="left"]').nth(0).text_content() == HOSTILE[0]
        assert page.locator('.token[data-side="left"]').nth(1).text_content() == HOSTILE[1]
        assert HOSTILE[0] in page.locator("#model").text_content()
        assert HOSTILE[1] in page.locator("#gold").text_content()


def test_what_acts_on_the_display_is_shown_as_a_mark(browser: Any, hostile: Path) -> None:
    with open_page(browser, hostile.as_uri()) as page:
        texts = page.locator('.token[data-side="left"]').all_text_contents()
        assert texts[3] == "[U+202E]txet[U+2066]"
        assert texts[5] == "␀␇␛[31m"
        assert texts[6] == "[U+200B]"
        assert texts[7].startswith("◌")
        assert texts[9] == "[U+D800]"
        assert texts[10] == "[U+E0041]"
        assert texts[12] == "↵\n"
        assert texts[13] == "·"
        everywhere = page.locator("body").text_content()
        assert not any(character in everywhere for character in "\u202e\u2066\u200b\x00\x07\x1b")
        labels = page.locator("[aria-label]").evaluate_all("all => all.map((each) => each.getAttribute('aria-label')).join('')")
        assert not any(character in labels for character in "\u202e\u2066\u200b\x00\x07\x1b")


def test_a_right_to_left_token_does_not_move_its_neighbours(browser: Any, hostile: Path) -> None:
    with open_page(browser, hostile.as_uri()) as page:
        assert page.locator(".token").evaluate_all("all => all.every((e) => getComputedStyle(e).unicodeBidi === 'isolate')")
        assert page.locator(".chip").evaluate_all("all => all.every((e) => getComputedStyle(e).unicodeBidi === 'isolate')")


def test_a_long_token_does_not_widen_the_page(browser: Any, hostile: Path) -> None:
    with open_page(browser, hostile.as_uri(), viewport={"width": 380, "height": 800}) as page:
        page.evaluate("lens.pick({ side: 'left', position: 11 })")
        assert overflow(page) == 0
