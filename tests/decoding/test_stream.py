"""`loopcd.stream`, and text that arrives token by token."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import loopcd
from decoding.writer import writing
from loopcd.decoding.texts import StopTexts, TextPieces, pad_left, trim
from loopcd.models import LoopedModel
from tools import byte_tokenizer

BYTES = byte_tokenizer()


class Words:
    """A tokenizer whose tokens are the given texts."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self.words[token] for token in ids)


# The stream of a model


@pytest.mark.parametrize(
    "options",
    [
        {"method": loopcd.Greedy()},
        {"method": loopcd.LoopCD(1, 0.9)},
        {"method": loopcd.LoopCD(1, 0.9), "temperature": 1.2, "seed": 4, "top_p": 0.9},
        {"method": loopcd.LoopCD(2, 0.9, exit=loopcd.EarlyExit(0.5, min_loops=3))},
        {"method": loopcd.NoiseCD(2.0)},
        {"method": loopcd.MTI(3.5)},
        {"num_loops": 2, "temperature": 1.0, "stop": ["e", "1", " ", "Z"]},
    ],
)
def test_the_pieces_are_the_text_of_generate(own_model: LoopedModel, tokenizer: Any, options: dict[str, Any]) -> None:
    pieces = list(loopcd.stream(own_model, tokenizer, "some words", max_new_tokens=25, **options))
    assert "".join(pieces) == loopcd.generate(own_model, tokenizer, "some words", max_new_tokens=25, **options).text
    assert all(pieces) and len(pieces) > (0 if "stop" in options else 1)


@pytest.mark.parametrize("text", ["añb", "x€y", "🙂", "té", "日é"])
def test_no_piece_splits_a_character(text: str) -> None:
    model, tokenizer = writing(text)
    assert list(loopcd.stream(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=30)) == list(text)


def test_a_text_that_ends_inside_a_character() -> None:
    model, tokenizer = writing("a€")
    pieces = list(loopcd.stream(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=3))
    assert "".join(pieces) == loopcd.generate(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=3).text
    assert pieces[0] == "a" and "€" not in pieces[1]


def test_a_stop_string_over_several_pieces_is_never_shown() -> None:
    model, tokenizer = writing("abcdefgh")
    assert list(loopcd.stream(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=30, stop="def")) == ["a", "b", "c"]
    assert list(loopcd.stream(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=30, stop="dex")) == [
        "a",
        "b",
        "c",
        "def",
        "g",
        "h",
    ]


def test_pieces_come_while_the_text_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = writing("abcdefgh")
    loops, advance = [], type(model).advance
    monkeypatch.setattr(type(model), "advance", lambda self, state: (loops.append(1), advance(self, state))[1])
    pieces = loopcd.stream(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=30)
    assert not loops
    assert next(pieces) == "a"
    assert len(loops) == model.num_loops
    assert next(pieces) == "b"
    assert len(loops) == 2 * model.num_loops


def test_bad_prompts_are_refused_before_the_first_piece(own_model: LoopedModel, tokenizer: Any) -> None:
    for prompt, message in (("", "prompt is empty"), ("x" * 300, "prompt has 300 tokens")):
        with pytest.raises(ValueError, match=message):
            loopcd.stream(own_model, tokenizer, prompt, loopcd.Greedy())


# Pieces of any text


def fed(pieces: TextPieces, tokens: list[int], stops: tuple[str, ...]) -> list[str]:
    """What is given out token by token and at the end; as in a generation, a stop string ends it."""
    given_out = []
    for count, token in enumerate(tokens, start=1):
        given_out.append(pieces.add(token))
        if any(stop in pieces.tokenizer.decode(tokens[:count]) for stop in stops):
            break
    return [*given_out, pieces.end()]


@given(st.text())
@example("a\u0301🙂👩‍👧€ñ\n")
def test_whole_characters_as_soon_as_they_are_whole(text: str) -> None:
    if "\ufffd" in text:
        text = text.replace("\ufffd", "?")
    pieces, shown, tokens = TextPieces(BYTES, ()), "", []
    for character in text:
        for byte in BYTES(character, add_special_tokens=False).input_ids:
            assert shown == BYTES.decode(tokens)  # nothing of a character that is not whole
            shown += pieces.add(byte)
        tokens += BYTES(character, add_special_tokens=False).input_ids
        assert shown == BYTES.decode(tokens)
    assert pieces.end() == "" and shown == text


@given(st.lists(st.integers(0, 255), max_size=20))
def test_bytes_that_are_no_text(tokens: list[int]) -> None:
    given_out = fed(TextPieces(BYTES, ()), tokens, ())
    assert "".join(given_out) == BYTES.decode(tokens)


@given(
    st.lists(st.text("abé", min_size=1, max_size=4), max_size=8),
    st.lists(st.text("abé", min_size=1, max_size=3), min_size=1, max_size=2),
)
@example(["aba", "b"], ["abb"])
@example(["ab", "c"], ["bc", "abcd"])
def test_stop_strings_wherever_tokens_begin_and_end(words: list[str], stops: list[str]) -> None:
    tokens = list(range(len(words)))
    given_out = fed(TextPieces(Words(words), stops), tokens, tuple(stops))
    made = ""
    for word in words:
        made += word
        if any(stop in made for stop in stops):
            break
    cut = min((made.index(stop) for stop in stops if stop in made), default=len(made))
    assert "".join(given_out) == made[:cut]


@given(st.text("abé€", max_size=20), st.text("abé€", min_size=1, max_size=3), st.text("abé€", min_size=1, max_size=5))
def test_a_row_stops_at_the_token_that_completes_a_stop_string(text: str, stop: str, prompt: str) -> None:
    start, tokens = BYTES(prompt).input_ids, BYTES(text).input_ids
    criterion = StopTexts(BYTES, [stop, "never"], len(start))
    seen = ""
    for count in range(1, len(tokens) + 1):
        seen = str(BYTES.decode(tokens[:count]))
        row = torch.tensor([start + tokens[:count]])
        assert criterion(row, None).tolist() == [stop in seen]
        if stop in seen:
            break
    assert trim(seen, ["never", stop]) == ((seen[: seen.index(stop)], True) if stop in seen else (seen, False))


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=4))
def test_left_padding(prompts: list[list[int]]) -> None:
    ids, mask = pad_left(prompts, 77, "cpu")
    assert ids.shape == mask.shape == (len(prompts), max(len(prompt) for prompt in prompts))
    for row, prompt in enumerate(prompts):
        assert ids[row][mask[row]].tolist() == prompt
        assert ids[row].tolist() == [77] * (ids.shape[1] - len(prompt)) + prompt
