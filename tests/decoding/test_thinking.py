"""The thinking part of an answer: found in whole texts and kept out of streams, however they are cut."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import loopcd
from loopcd.cli import main
from loopcd.decoding import Generation
from loopcd.decoding.chat import chat_ids
from loopcd.decoding.thinking import Thought, has_switch, is_opened, split_thinking, template_options, without_thinking
from tools import byte_tokenizer, save_model, tiny_ouro

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


# Through the command line


def test_generate_hands_the_switch_on_and_hides_the_thinking_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = SWITCHED
    save_model(tmp_path, tiny_ouro())
    tokenizer.save_pretrained(tmp_path)
    asked: list[list[int]] = []

    def written(model: Any, tokenizer: Any, prompts: Any, method: Any, **options: Any) -> list[Generation]:
        asked.append(chat_ids(tokenizer, prompts[0], "prompt", options["enable_thinking"]))
        text = "so\n</think>\n\nTwo." if options["enable_thinking"] else "<think>so</think>Two."
        return [Generation(text, [1], "stop", [4], 0, 0)]

    monkeypatch.setattr(loopcd, "generate", written, raising=False)
    line = ["generate", "Hi", "--chat", "--model", str(tmp_path)]
    for more, wanted in (
        (["--thinking"], "Two."),
        (["--no-thinking"], "Two."),
        (["--no-thinking", "--show-thinking"], "<think>so</think>Two."),
    ):
        made = CliRunner().invoke(main, [*line, *more])
        assert made.exit_code == 0 and made.stdout.strip() == wanted, made.output
    assert tokenizer.decode(asked[0]) == "Hi<think>\n" and tokenizer.decode(asked[1]) == "Hi"
    told = json.loads(CliRunner().invoke(main, [*line, "--thinking", "--json"]).stdout)["results"][0]
    assert (told["thinking"], told["answer"]) == ("so", "Two.")


def test_the_switch_reaches_the_prompt() -> None:
    tokenizer, model = byte_tokenizer(), tiny_ouro()
    tokenizer.chat_template = SWITCHED
    messages = [{"role": "user", "content": "Hi"}]
    for wanted, text in ((True, "Hi<think>\n"), (False, "Hi"), (None, "Hi")):
        found = loopcd.generate(model, tokenizer, messages, loopcd.Greedy(), max_new_tokens=5, enable_thinking=wanted)
        streamed = "".join(loopcd.stream(model, tokenizer, messages, loopcd.Greedy(), max_new_tokens=5, enable_thinking=wanted))
        assert found.text == streamed == loopcd.generate(model, tokenizer, text, loopcd.Greedy(), max_new_tokens=5).text
