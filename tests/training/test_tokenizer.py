"""The tokenizer: one token a word and digit of the benchmark, and every text comes back."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from loopcd.evaluation.tasks.steps import VARIANTS, problems
from loopcd.training.tokenizer import PIECE, build_tokenizer

TOKENIZER = build_tokenizer()


@pytest.mark.parametrize("variant", VARIANTS)
def test_benchmark_text_comes_back_in_whole_words(variant: str) -> None:
    for problem in problems(variant, "test", 150):
        ids = TOKENIZER(problem.text)["input_ids"]
        assert TOKENIZER.decode(ids) == problem.text
        assert len(ids) == len(re.findall(PIECE, problem.text))  # nothing had to be written in bytes


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("piece", [" A", " B", " 7", "7", "####", "\n", " coins"])
def test_pieces_are_single_tokens(piece: str) -> None:
    assert len(TOKENIZER(piece)["input_ids"]) == 1


def test_digits_are_tokens_of_their_own() -> None:
    assert TOKENIZER.tokenize(" 407") == ["Ġ4", "0", "7"]


def test_prompt_and_answer_split_where_their_text_does() -> None:
    problem = problems("steps", "test", 1)[0]
    whole = TOKENIZER(problem.text)["input_ids"]
    assert whole == TOKENIZER(problem.prompt)["input_ids"] + TOKENIZER(f" {problem.answer}")["input_ids"]


def test_it_is_saved_as_a_fast_tokenizer(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.padding_side) == (0, 1, "left")
    assert loaded("Mia has 4 * 3 = 12 coins.")["input_ids"] == TOKENIZER("Mia has 4 * 3 = 12 coins.")["input_ids"]
