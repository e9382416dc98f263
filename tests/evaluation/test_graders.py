"""GSM8K's two readings of an answer, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopcd.evaluation.graders import flex_answer, flex_match, strict_answer, strict_match


@pytest.mark.parametrize(
    ("text", "gold", "strict", "flex"),
    [
        ("so 4 * 3 = 12.\n#### 12", "12", True, True),
        ("#### 12 and then #### 13", "12", True, False),  # strict: the first; flex: the last number
        ("the answer is 12.", "12", False, True),
        ("#### 1,200", "1200", True, True),
        ("#### 1200", "1,200", True, True),
        ("It costs $1,200.", 1200, False, True),
        ("#### $12", "12", False, True),  # strict reads digits only, right after the space
        ("####12", "12", False, True),
        ("#### -7", "-7", True, True),
        ("#### 12.", "12", True, True),
        ("#### 12.0", "12", False, False),
        ("no number", "12", False, False),
        ("", "12", False, False),
        ("#### ..", "12", False, False),
    ],
)
def test_readings(text: str, gold: str | int, strict: bool, flex: bool) -> None:
    assert strict_match(text, gold) is strict
    assert flex_match(text, gold) is flex


def test_punctuation_is_never_a_right_answer() -> None:
    assert not flex_match("wait...", "")
    assert not strict_match("#### ,", "")


@given(st.integers(-(10**9), 10**9), st.text(alphabet="abc =+\n.", max_size=30))
def test_a_canonical_answer_is_right_after_any_words(number: int, words: str) -> None:
    for written in (str(number), f"{number:,}"):
        text = f"{words}\n#### {written}"
        assert strict_match(text, number) and flex_match(text, number)


def test_extraction_keeps_what_was_written() -> None:
    assert strict_answer("x #### 1,234. y") == "1,234."
    assert flex_answer("costs $5 or 7 apples") == "7"
    assert strict_answer("none") is None and flex_answer("none") is None
