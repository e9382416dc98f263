"""A trace that grows with the text is the trace of the text."""

from typing import Any

import numpy as np
import pytest

import loopcd
from loopcd.models import LoopedModel
from loopcd.tracing import LiveTracer, LoopTrace, Written, trace_texts
from loopcd.tracing.trace import ARRAYS
from tools import TOLERANCE, random_ids


def assert_same(found: LoopTrace, wanted: LoopTrace) -> None:
    for name, (dtype, _) in ARRAYS.items():
        tolerance = TOLERANCE if dtype == "float32" else 0
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=tolerance, err_msg=name)
    for name in ("prompt", "text", "pieces", "amateur_loop", "strength", "num_loops", "method", "init_seed", "token_texts"):
        assert getattr(found, name) == getattr(wanted, name), name


@pytest.mark.parametrize(
    "options", [{}, {"amateur_loop": 2, "strength": 0.7, "plausibility": 0.01, "top": 3}, {"num_loops": 2}]
)
def test_token_by_token_equals_the_whole_text(model: LoopedModel, tokenizer: Any, options: dict[str, Any]) -> None:
    prompt, tokens = random_ids(1, 6)[0].tolist(), random_ids(1, 9, seed=1)[0].tolist()
    live = LiveTracer(model, tokenizer, prompt, **options)
    parts = [live.add(token) for token in tokens]
    (wanted,) = trace_texts(model, tokenizer, [Written(prompt, tokens)], **options)
    assert_same(live.trace(), wanted)
    assert [len(part) for part in parts] == [1] * 9
    for name, (_, shape) in ARRAYS.items():
        if shape.startswith(("n", "S")):
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_allclose(joined, getattr(wanted, name), rtol=0, atol=TOLERANCE, err_msg=name)


def test_from_a_drawn_state(huginn: LoopedModel, tokenizer: Any) -> None:
    made = loopcd.generate(huginn, tokenizer, "once upon", loopcd.Greedy(), max_new_tokens=8, init_seed=4, trace=True)
    live = LiveTracer(huginn, tokenizer, made.trace.prompt_ids, init_seed=4)
    for token in made.token_ids:
        one = live.add(token)
        assert one.winner.tolist() == [token]
    np.testing.assert_allclose(live.trace().logit, made.trace.logit, atol=TOLERANCE)


def test_exits_and_refusals(ouro: LoopedModel, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="prompt_ids is empty"):
        LiveTracer(ouro, tokenizer, [])
    with pytest.raises(ValueError, match="amateur_loop=9: from 1 to 4"):
        LiveTracer(ouro, tokenizer, [1], amateur_loop=9)
    live = LiveTracer(ouro, tokenizer, [1])
    with pytest.raises(ValueError, match="nothing was added"):
        live.trace()
    assert live.add(5, loops=2).exit_loop.tolist() == [2] and not live.trace().full_depth
    for wrong, message in (({"loops": 9}, "loops=9: from 1 to 4"), ({"token_id": 10**6}, "token_id=1000000: .* 0 to 258")):
        with pytest.raises(ValueError, match=message):
            live.add(**{"token_id": 7, **wrong})
    live.add(6)  # what was refused is no part of the text
    assert live.trace().token_ids.tolist() == [5, 6]
