"""Traces of texts against the whole table of logits, reduced by hand."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import loopcd
from decoding.slow import Slow, Text
from hand_traces import hand_trace
from loopcd.models import LoopedModel
from loopcd.models.names import built_in
from loopcd.tracing import LoopTrace, Written, measure, trace_texts
from loopcd.tracing.trace import ARRAYS
from tools import TOLERANCE, random_ids, tiny_huginn, tiny_ouro

LENGTHS = [(3, 7), (9, 1), (1, 12), (5, 5)]  # of prompt and text


def written(seed: int = 0, **facts: Any) -> list[Written]:
    rows = [random_ids(1, p + n, seed=seed + p)[0].tolist() for p, n in LENGTHS]
    return [Written(row[:p], row[p:], **facts) for row, (p, _) in zip(rows, LENGTHS, strict=True)]


@torch.no_grad()
def states(model: LoopedModel, ids: list[int], num_loops: int, **options: Any) -> list[torch.Tensor]:
    state = model.begin(torch.tensor([ids]), **options)
    seen = [state.hidden[0]]
    for _ in range(num_loops):
        state = model.advance(state)
        seen.append(state.hidden[0])
    return seen


def said_by_loop(slow: Slow, text: Text) -> torch.Tensor:
    """[loops, vocab]"""
    early = [slow.early(text, loop) for loop in range(1, slow.loops)]
    return torch.stack([*early, slow.said(text, slow.loops)]).float()


def by_hand(model: LoopedModel, item: Written, num_loops: int | None = None, **setting: Any) -> LoopTrace:
    """The trace from what a slow reading of this text alone says, token by token."""
    loops = num_loops or model.num_loops
    prompt, tokens = [int(token) for token in item.prompt], list(item.token_ids)
    ids = prompt + tokens[:-1]
    slow = Slow(model)
    slow.loops = loops
    logits = torch.stack([said_by_loop(slow, Text(ids[:end], len(prompt))) for end in range(len(prompt), len(ids) + 1)], dim=1)
    latents = [each[len(prompt) - 1 :] for each in states(model, ids, loops)]
    changes = [(after - before).norm(dim=1) / after.norm(dim=1) for before, after in pairwise(latents)]
    return hand_trace(logits.transpose(0, 1).numpy(), tokens, changes=torch.stack(changes, dim=1).numpy(), top=6, **setting)


def assert_same(found: LoopTrace, wanted: LoopTrace, leave: tuple[str, ...] = ("prompt_ids",)) -> None:
    """Ids equal, numbers within float rounding."""
    for name, (dtype, _) in ARRAYS.items():
        if name in leave:
            continue
        one, other = getattr(found, name), getattr(wanted, name)
        if dtype == "float32":
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE, err_msg=name)
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("setting", [{}, {"amateur_loop": 2, "strength": 0.9, "plausibility": 0.01}])
def test_equals_a_slow_reading(model: LoopedModel, setting: dict[str, Any]) -> None:
    items = written()
    preset = {"amateur_loop": 1, "strength": 0.2 if model.config.model_type == "ouro" else 0.3}
    if model.config.model_type == "ouro":
        preset["amateur_loop"] = 2
    read = [by_hand(model, item, **{**preset, **setting}) for item in items]
    for batch_size in (1, 3, 8):
        traces = list(trace_texts(model, None, items, batch_size=batch_size, **setting))
        for item, trace, wanted in zip(items, traces, read, strict=True):
            assert_same(trace, wanted)
            assert trace.prompt_ids.tolist() == list(item.prompt)
            assert (trace.amateur_loop, trace.strength, trace.plausibility) == (
                wanted.amateur_loop,
                wanted.strength,
                wanted.plausibility,
            )


def test_a_coda_of_its_own_is_loop_logits(huginn: LoopedModel) -> None:
    """Which are what the model says when it is stopped at a loop all along."""
    row = random_ids(1, 9)[0]
    method = loopcd.LoopCD(2, 0.9, coda="own")
    (made,) = loopcd.generate(huginn, None, [row[:4].tolist()], method, max_new_tokens=5, trace=True)
    ids = torch.tensor([row[:4].tolist() + made.token_ids[:-1]])
    wanted = loopcd.loop_logits(huginn, ids)[0, :, 3:].amax(dim=-1).T
    np.testing.assert_allclose(made.trace.top_logits[:, :, 0], wanted, atol=TOLERANCE)


def test_blocks_of_positions_change_nothing(own_model: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    items = written()
    whole = list(trace_texts(own_model, None, items))
    monkeypatch.setattr(measure, "BLOCK", 2 * own_model.config.vocab_size)
    for one, other in zip(trace_texts(own_model, None, items), whole, strict=True):
        assert_same(one, other, leave=())


def test_other_numbers_of_loops(own_model: LoopedModel) -> None:
    for loops in (1, 2, 6):
        (trace,) = trace_texts(own_model, None, written()[:1], num_loops=loops, amateur_loop=1, strength=0.3)
        assert trace.num_loops == loops
        assert_same(trace, by_hand(own_model, written()[0], loops, amateur_loop=1, strength=0.3))


def test_sets_of_more_than_64_are_cut(own_model: LoopedModel) -> None:
    items = written()
    for item, trace in zip(items, trace_texts(own_model, None, items, plausibility=1e-4), strict=True):
        assert trace.plausible_count.max() > 64
        settings = {"amateur_loop": trace.amateur_loop, "strength": trace.strength}
        assert_same(trace, by_hand(own_model, item, plausibility=1e-4, **settings))


def test_each_text_from_its_own_initial_state(huginn: LoopedModel) -> None:
    items = written()[:1] + written(init_seed=3)[1:2] + written(init_seed=11)[2:]
    for item, trace in zip(items, trace_texts(huginn, None, items), strict=True):
        ids = [*item.prompt, *item.token_ids[:-1]]
        options: Any = {} if item.init_seed is None else {"init_seed": item.init_seed}
        with torch.no_grad():
            state = huginn.begin(torch.tensor([ids]), **options)
            for _ in range(huginn.num_loops):
                state = huginn.advance(state)
            logits = huginn.head(huginn.readout(state))[0, len(item.prompt) - 1 :]
        np.testing.assert_allclose(trace.logit[:, -1], logits.amax(dim=-1), atol=TOLERANCE)
        assert trace.init_seed == item.init_seed


@pytest.mark.parametrize("name", sorted(built_in()))
def test_built_in_models(name: str) -> None:
    model, tokenizer = loopcd.load(name)
    prompt = "Tom has 3 apples and buys 4 apples . How many apples does Tom have ?"
    made = loopcd.generate(model, tokenizer, prompt, loopcd.LoopCD(), max_new_tokens=16, trace=True)
    trace = made.trace
    item = Written(trace.prompt_ids.tolist(), made.token_ids)
    wanted = by_hand(model, item, amateur_loop=trace.amateur_loop, strength=trace.strength)
    assert_same(trace, wanted)
    assert trace.model == name and trace.prompt == prompt and trace.text == made.text


def test_texts_of_tokens(huginn: LoopedModel, tokenizer: Any) -> None:
    text = "né 5€ <eos>"
    ids = tokenizer(text).input_ids
    assert 258 in ids
    (trace,) = trace_texts(huginn, tokenizer, [Written("what?", ids)])
    assert "".join(trace.pieces) == text and trace.text == text.replace("<eos>", "")
    assert trace.pieces[:4] == ("n", "", "é", " ") and trace.pieces[-1] == "<eos>"
    assert trace.token_texts[ids[0]] == "n" and set(trace.top_ids.ravel().tolist()) <= set(trace.token_texts)
    (cut,) = trace_texts(huginn, tokenizer, [Written("what?", ids[:2])])  # ends inside a character
    assert "".join(cut.pieces) == tokenizer.decode(ids[:2])


class Spaced:
    """A tokenizer whose words are joined by blanks, so that a token's text depends on what stands before it."""

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return " ".join(f"w{token}" for token in ids)


def test_texts_that_depend_on_the_tokens_before(huginn: LoopedModel) -> None:
    (trace,) = trace_texts(huginn, Spaced(), [Written([1, 2], [3, 40, 5])])
    assert trace.pieces == ("w3", " w40", " w5") and trace.prompt == "w1 w2"


def test_what_was_noted_comes_along(ouro: LoopedModel) -> None:
    item = Written([1, 2], [3, 4], text="so", loops=[2, 4], method="Greedy(exit=…)", extra={"gold": "7", "right": False})
    (trace,) = trace_texts(ouro, None, [item])
    assert (trace.text, trace.method, trace.extra) == ("so", "Greedy(exit=…)", {"gold": "7", "right": False})
    assert trace.exit_loop.tolist() == [2, 4] and trace.model == "ouro"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amateur_loop": 5}, "amateur_loop=5: from 1 to 4"),
        ({"amateur_loop": 0}, "amateur_loop=0: from 1 to 4"),
        ({"amateur_loop": 1.5}, "amateur_loop=1.5"),
        ({"strength": -1}, "strength=-1"),
        ({"plausibility": 0}, "plausibility=0"),
        ({"top": 0}, "top=0"),
        ({"num_loops": 0}, "num_loops=0"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_bad_settings(ouro: LoopedModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):  # at the call, not when the first trace is asked for
        trace_texts(ouro, None, written(), **options)


def test_bad_texts(ouro: LoopedModel) -> None:
    with pytest.raises(ValueError, match="token_ids is empty"):
        list(trace_texts(ouro, None, [Written([1], [])]))
    with pytest.raises(ValueError, match="prompt is empty"):
        list(trace_texts(ouro, None, [Written([], [1])]))
    with pytest.raises(ValueError, match="no tokenizer"):
        list(trace_texts(ouro, None, [Written("text", [1])]))
    with pytest.raises(ValueError, match="init_seed"):
        list(trace_texts(ouro, None, [Written([1], [1], init_seed=1)]))


def test_a_model_that_computes_no_numbers_is_refused() -> None:
    model = tiny_ouro(0)
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        list(trace_texts(model, None, written()))


def test_top_is_at_most_the_vocabulary() -> None:
    model = tiny_huginn(0, vocab_size=4, pad_token_id=0)
    (trace,) = trace_texts(model, None, [Written([1, 2], [3, 0])], top=9)
    assert trace.top_ids.shape == (2, 4, 4)
