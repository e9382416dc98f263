"""The thinking part of an answer: found in whole texts and kept out of streams, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopcd.decoding.thinking import Thought, has_switch, is_opened, split_thinking, template_options, without_thinking
from tools import byte_tokenizer

SWITCHED = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("text", "opened", "wanted"),
    [
        ("<think>\nso\n</think>\n\nTwo.", False, Thought("so", "Two.")),
        ("so\n</think>\nTwo.", True, Thought("so", "Two.")),
        ("Two.", False, Thought(None, "Two.")),
        ("I said <think> and </think>.", False, Thought(None, "I said <think> and </think>.")),
        ("<think>so it", False, Thought("so it", "")),
        ("so it", True, Thought("so it", "")),
        ("<think></think>a</think>b", False, Thought("", "a</think>b")),
    ],
)
def test_whole_texts(text: str, opened: bool, wanted: Thought) -> None:
    assert split_thinking(text, opened) == wanted


@given(
    text=st.sampled_from(
        ["<think>\nso\n</think>\n\nTwo. Yes.", "Two.", "", "<", "<thin", "<thing>", "  <think>a</think> b", "<think>never"]
    ),
    opened=st.booleans(),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_a_stream_shows_what_the_whole_text_would(text: str, opened: bool, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(edges)]
    assert "".join(without_thinking(pieces, opened)) == split_thinking(text, opened).answer


def test_an_answer_is_shown_at_once() -> None:
    pieces = iter(["<think>", "a", "</think>", "\n", "Two", " and", " two"])
    shown = without_thinking(pieces)
    assert next(shown) == "Two" and next(pieces) == " and"  # nothing beyond it was waited for


def test_the_switch_goes_to_templates_that_have_it() -> None:
    tokenizer = byte_tokenizer()
    assert not has_switch(tokenizer) and template_options(tokenizer, None) == {}
    with pytest.raises(ValueError, match=r"enable_thinking=True: .* no such switch"):
        template_options(tokenizer, True)
    tokenizer.chat_template = SWITCHED
    messages = [{"role": "user", "content": "Hi"}]
    for wanted in (True, False):
        text = tokenizer.apply_chat_template(messages, tokenize=False, **template_options(tokenizer, wanted))
        assert is_opened(str(text)) == wanted
