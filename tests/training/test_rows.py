"""The training text: only the train split, right weights, the same batches for the same numbers."""

from dataclasses import replace

import torch

from loopcd.training.rows import POOL, RowMaker, pool_of_batches
from training.small import TEXT, TOKENIZER

MAKER = RowMaker(TEXT, TOKENIZER, seed=0)


def text_of(tokens: list[int]) -> str:
    return str(TOKENIZER.decode(tokens))


def test_a_problem_row_weighs_the_answer_and_hardly_the_question() -> None:
    row = MAKER.row(3, equations=0.0)
    text = text_of(row.tokens)
    assert text.startswith("Question: ") and text.endswith("<|end|>")
    question = [token for token, weight in zip(row.tokens, row.weights, strict=True) if weight == TEXT.question_weight]
    assert text_of(question).endswith("\nAnswer:")
    assert set(row.weights) == {TEXT.question_weight, 1.0}


def test_an_equation_row_weighs_results_only() -> None:
    row = MAKER.row(3, equations=1.0)
    for equation in text_of(row.tokens).strip().rstrip(".").split(". "):
        left, result = equation.split(" = ")
        assert eval(left) == int(result)
    weighted = text_of([t for t, w in zip(row.tokens, row.weights, strict=True) if w])
    assert set(weighted) <= set(" 0123456789.") and weighted.endswith(".")


def test_batches_are_a_function_of_seed_and_pool() -> None:
    first, again = pool_of_batches(MAKER, 0, 0.4), pool_of_batches(RowMaker(TEXT, TOKENIZER, seed=0), 0, 0.4)
    assert len(first) == len(again)
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(first, again, strict=True))
    other = pool_of_batches(RowMaker(TEXT, TOKENIZER, seed=1), 0, 0.4)
    assert not torch.equal(first[0].tokens, other[0].tokens)


def test_batches_have_the_given_widths_and_no_weight_on_padding() -> None:
    batches = pool_of_batches(MAKER, 1, 0.2)
    assert {batch.tokens.shape[1] for batch in batches} <= set(TEXT.widths)
    assert sum(len(batch.tokens) for batch in batches) > 0.9 * POOL
    for batch in batches:
        padded = batch.tokens == TOKENIZER.pad_token_id
        assert not batch.weights[padded].any()


def test_rows_beyond_the_largest_width_are_left_out() -> None:
    narrow = RowMaker(replace(TEXT, widths=(64,)), TOKENIZER, seed=0)
    assert all(batch.tokens.shape[1] == 64 for batch in pool_of_batches(narrow, 0, 0.0))
