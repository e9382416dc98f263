"""`loopcd.generate`: texts in, texts out, each by itself whatever else is asked for."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopcd
from decoding.runs import tokens_of
from decoding.writer import writing
from loopcd.decoding.loop import LoopedOutput
from loopcd.models import LoopedModel
from tools import EOS, MAKERS, PAD, byte_tokenizer, tiny_ouro

PROMPTS = ["one", "a second prompt", "3", "the fourth of them", "five?"]
METHODS = {
    "greedy": loopcd.Greedy(),
    "loopcd": loopcd.LoopCD(1, 0.9),
    "own": loopcd.LoopCD(2, 0.9, coda="own"),
    "loopguidance": loopcd.LoopGuidance(1, 1.5),
    "noisecd": loopcd.NoiseCD(2.0, 0.9),
    "mti": loopcd.MTI(3.5, 3.0),
    "exit": loopcd.LoopCD(1, 0.9, exit=loopcd.EarlyExit(0.5, min_loops=2)),
}


@pytest.fixture(scope="module")
def tiny() -> dict[str, LoopedModel]:
    return {name: make(1) for name, make in MAKERS.items()}


# What is returned


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_it_is_transformers_generate_with_the_method(own_model: LoopedModel, tokenizer: Any, method: Any) -> None:
    made = loopcd.generate(own_model, tokenizer, PROMPTS[1], method, max_new_tokens=9)
    ids = torch.tensor([tokenizer(PROMPTS[1]).input_ids])
    wanted = tokens_of(own_model, ids, method, count=9, tokenizer=tokenizer, eos_token_id=EOS, pad_token_id=PAD)
    assert made.token_ids == wanted[0]
    assert made.text == tokenizer.decode(made.token_ids, skip_special_tokens=True)
    assert len(made.loops) == 9 and made.finish_reason == "length" and made.trace is None


def test_a_text_gives_one_and_a_list_gives_a_list(own_model: LoopedModel, tokenizer: Any) -> None:
    one = loopcd.generate(own_model, tokenizer, "ab", loopcd.Greedy(), max_new_tokens=3)
    assert isinstance(one, loopcd.Generation)
    assert loopcd.generate(own_model, tokenizer, ["ab"], loopcd.Greedy(), max_new_tokens=3) == [one]
    assert loopcd.generate(own_model, tokenizer, [], loopcd.Greedy(), max_new_tokens=3) == []


def test_token_ids_may_stand_for_texts(own_model: LoopedModel, tokenizer: Any) -> None:
    ids = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    wanted = loopcd.generate(own_model, tokenizer, PROMPTS, loopcd.Greedy(), max_new_tokens=4)
    assert loopcd.generate(own_model, tokenizer, ids, loopcd.Greedy(), max_new_tokens=4) == wanted
    assert loopcd.generate(own_model, tokenizer, [torch.tensor(ids[0])], loopcd.Greedy(), max_new_tokens=4) == wanted[:1]  # pyright: ignore
    bare = loopcd.generate(own_model, None, ids, loopcd.Greedy(), max_new_tokens=4)
    assert [made.token_ids for made in bare] == [made.token_ids for made in wanted]
    assert {made.text for made in bare} == {""}
    alone = loopcd.generate(own_model, tokenizer, tokenizer("some words").input_ids, max_new_tokens=4)
    assert alone == loopcd.generate(own_model, tokenizer, "some words", max_new_tokens=4)


def test_the_number_of_loops(own_model: LoopedModel, tokenizer: Any) -> None:
    made = loopcd.generate(own_model, tokenizer, "ab", loopcd.LoopCD(1, 0.9), max_new_tokens=3, num_loops=2)
    assert made.loops == [2, 2, 2]


def test_the_initial_state(huginn: LoopedModel, ouro: LoopedModel, tokenizer: Any) -> None:
    made = [
        loopcd.generate(huginn, tokenizer, "ab", loopcd.Greedy(), max_new_tokens=9, init_seed=seed) for seed in (None, 0, 0, 1)
    ]
    assert made[1] == made[2] and len({str(each.token_ids) for each in made}) == 3
    with pytest.raises(ValueError, match="init_seed"):
        loopcd.generate(ouro, tokenizer, "ab", loopcd.Greedy(), init_seed=0)


# Rows do not influence each other


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_order_and_batch_size_change_nothing(own_model: LoopedModel, tokenizer: Any, method: Any) -> None:
    alone = [loopcd.generate(own_model, tokenizer, prompt, method, max_new_tokens=7) for prompt in PROMPTS]
    assert loopcd.generate(own_model, tokenizer, PROMPTS, method, max_new_tokens=7, batch_size=2) == alone
    assert loopcd.generate(own_model, tokenizer, PROMPTS[::-1], method, max_new_tokens=7) == alone[::-1]


@given(data=st.data())
@settings(max_examples=8, derandomize=True)
def test_a_row_is_the_same_in_any_batch(data: st.DataObject, tiny: dict[str, LoopedModel]) -> None:
    model, tokenizer = tiny[data.draw(st.sampled_from(sorted(tiny)))], byte_tokenizer()
    prompts = data.draw(st.lists(st.text("abc é", min_size=1, max_size=12), min_size=2, max_size=5))
    options: dict[str, Any] = {
        "method": data.draw(st.sampled_from([METHODS["greedy"], METHODS["loopcd"], METHODS["exit"]])),
        "temperature": data.draw(st.sampled_from([0.0, 0.8, 1.5])),
        "top_p": data.draw(st.sampled_from([0.7, 1.0])),
        "seed": data.draw(st.integers(0, 5)),
        "max_new_tokens": 5,
    }
    together = loopcd.generate(model, tokenizer, prompts, batch_size=data.draw(st.integers(1, 5)), **options)
    # with one prompt replaced, the others keep their place in the call, from which their draws follow
    at = data.draw(st.integers(0, len(prompts) - 1))
    others = [prompt if place == at else "other words" for place, prompt in enumerate(prompts)]
    assert loopcd.generate(model, tokenizer, others, **options)[at] == together[at]
    if at == 0:
        assert loopcd.generate(model, tokenizer, prompts[0], **options) == together[0]


def test_seeds(own_model: LoopedModel, tokenizer: Any) -> None:
    def made(**options: Any) -> list[list[int]]:
        drawn = loopcd.generate(own_model, tokenizer, ["ab", "ab"], METHODS["loopcd"], max_new_tokens=12, **options)
        return [each.token_ids for each in drawn]

    assert made(temperature=1.0, seed=1) == made(temperature=1.0, seed=1) != made(temperature=1.0, seed=2)
    assert made(temperature=1.0)[0] != made(temperature=1.0)[1]  # like prompts are drawn apart
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    assert made(temperature=1.0) == made(temperature=1.0, seed=0)
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is left alone
    assert made(temperature=1e-4) == made()


# Where texts end


def test_the_end_token_ends_a_text() -> None:
    model, tokenizer = writing("hey!")
    made = loopcd.generate(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=20)
    assert (made.text, made.finish_reason) == ("hey!", "stop")
    assert made.token_ids == [*tokenizer("hey!").input_ids, EOS] and len(made.loops) == 5
    made = loopcd.generate(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=4)
    assert (made.text, made.finish_reason) == ("hey!", "length")


def test_the_models_own_end_tokens_count_too() -> None:
    model, tokenizer = writing("hey!")
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [3, tokenizer("y").input_ids[0]]
    made = loopcd.generate(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=20)
    assert (made.text, made.finish_reason) == ("hey", "stop")


@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        ("c", "ab", 3),
        (["zz", "d"], "abc", 4),
        (("bc", "d"), "a", 3),  # over several tokens
        (["ef", "cde"], "ab", 5),
        ("é", "abcdef", 8),  # of two bytes
        ("x", "abcdefégh", 11),  # never: the end token comes
        ("<eos>", "abcdefégh", 11),  # the text of a special token
    ],
)
def test_stop_strings_end_a_text_and_are_cut_off(stop: Any, text: str, tokens: int) -> None:
    model, tokenizer = writing("abcdefégh")
    made = loopcd.generate(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=30, stop=stop)
    assert (made.text, len(made.token_ids), made.finish_reason) == (text, tokens, "stop")
    assert "".join(loopcd.stream(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=30, stop=stop)) == text


def test_a_special_token_as_a_stop_string() -> None:
    model, tokenizer = writing("ab")
    with torch.no_grad():  # after b comes <bos>
        model.lm_head.weight[:, tokenizer("b").input_ids[0]] = 0
        model.lm_head.weight[257, tokenizer("b").input_ids[0]] = 1
    made = loopcd.generate(model, tokenizer, "~", loopcd.Greedy(), max_new_tokens=9, stop="<bos>")
    assert (made.text, made.finish_reason, len(made.token_ids)) == ("ab", "stop", 3)


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    model, tokenizer = writing("abc")
    made = loopcd.generate(model, tokenizer, "b~", loopcd.Greedy(), max_new_tokens=9, stop="b")
    assert made.text == "a"


def test_rows_stop_at_different_places(own_model: LoopedModel, tokenizer: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 25, "temperature": 1.3, "stop": ["e", "\n", "A", "0", "t", "("]}
    together = loopcd.generate(own_model, tokenizer, PROMPTS, METHODS["loopcd"], **options)
    assert len({len(made.token_ids) for made in together}) > 1
    assert {made.finish_reason for made in together} == {"stop", "length"}
    assert loopcd.generate(own_model, tokenizer, PROMPTS, METHODS["loopcd"], **options, batch_size=1) == together
    for made in together:
        assert (made.finish_reason == "length") == (len(made.token_ids) == 25)
        assert not any(stop in made.text for stop in options["stop"])


def test_the_context_ends_a_text_and_no_other(tokenizer: Any) -> None:
    model = tiny_ouro(0, max_position_embeddings=24)
    prompts = ["x" * 20, "short", "y" * 23]
    made = loopcd.generate(model, tokenizer, prompts, loopcd.Greedy(), max_new_tokens=10)
    assert [len(each.token_ids) for each in made] == [4, 10, 1]
    assert {each.finish_reason for each in made} == {"length"}
    assert made[1] == loopcd.generate(model, tokenizer, "short", loopcd.Greedy(), max_new_tokens=10)
    # MTI needs room for its negative prompt of 12 tokens behind the text
    guided = loopcd.generate(model, tokenizer, ["x" * 7], loopcd.MTI(0.0), max_new_tokens=10)
    assert len(guided[0].token_ids) == 24 - 12 - 7


def test_progress(own_model: LoopedModel, tokenizer: Any) -> None:
    seen: list[tuple[int, int]] = []
    loopcd.generate(
        own_model,
        tokenizer,
        PROMPTS,
        loopcd.Greedy(),
        max_new_tokens=2,
        batch_size=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(done, 5) for done in range(1, 6)]


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature=-0\.1: a number of at least 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": 1e300}, "temperature=1e\\+300: 0, or from 1e-06 to 1e"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_p": 0.0}, r"top_p=0\.0: above 0, and at most 1"),
        ({"top_p": 1.1}, r"top_p=1\.1"),
        ({"top_p": float("nan")}, "top_p=nan"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: a whole number of at least 1"),
        ({"max_new_tokens": 2.5}, r"max_new_tokens=2\.5"),
        ({"max_new_tokens": True}, "max_new_tokens=True"),
        ({"stop": ""}, r"stop=\('',\): stop strings of at least one character"),
        ({"stop": ["a", ""]}, r"stop=\('a', ''\)"),
        ({"stop": [3]}, r"stop=\(3,\)"),
        ({"seed": 1.5}, r"seed=1\.5: a whole number"),
        ({"method": "loopcd"}, r"method='loopcd': a method such as loopcd.Greedy\(\)"),
        ({"method": loopcd.LoopCD}, "method=<class .*LoopCD'>: a method such as"),
        ({"num_loops": 0}, "num_loops=0: a whole number of loops, at least 1"),
        ({"method": loopcd.LoopCD(4)}, "amateur_loop=4: from 1 to 3"),
    ],
)
def test_options_that_make_no_sense(own_model: LoopedModel, tokenizer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loopcd.generate(own_model, tokenizer, "ab", **options)
    with pytest.raises(ValueError, match=message):
        list(loopcd.stream(own_model, tokenizer, "ab", **options))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("", "prompt is empty: a prompt needs at least one token"),
        (["a", ""], r"prompts\[1\] is empty"),
        ([[]], r"prompts\[0\] is empty"),
        ("x" * 256, "prompt has 256 tokens: the model's context of 256 leaves room for 255"),
        (["x", "y" * 300], r"prompts\[1\] has 300 tokens: the model's context of 256 leaves room for 255"),
        (None, "prompts=None: a text, a list of messages, a list of token ids, or a list of these"),
        ([1, "a"], r"prompts\[0\]=1: a text, a list of messages, or a list of token ids"),
        ([[1, "a"]], r"prompts\[0\]=\[1, 'a'\]: a text, a list of messages, or a list of token ids"),
        ([[1, 999]], "token id 999: the vocabulary has ids 0 to 258"),
        ([[-1]], "token id -1"),
    ],
)
def test_prompts_that_cannot_be_continued(own_model: LoopedModel, tokenizer: Any, prompts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loopcd.generate(own_model, tokenizer, prompts, loopcd.Greedy(), max_new_tokens=2)


def test_room_for_the_negative_prompt(own_model: LoopedModel, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="prompt has 250 tokens: the model's context of 256 leaves room for 243"):
        loopcd.generate(own_model, tokenizer, "x" * 250, loopcd.MTI(), max_new_tokens=2)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_batch_sizes_that_are_none(own_model: LoopedModel, tokenizer: Any, size: Any) -> None:
    with pytest.raises(ValueError, match=f"batch_size={size}: a whole number of at least 1"):
        loopcd.generate(own_model, tokenizer, ["ab"], loopcd.Greedy(), batch_size=size)


def test_without_a_tokenizer(own_model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="prompt is a text, but the model came without a tokenizer: pass token ids"):
        loopcd.generate(own_model, None, "ab", loopcd.Greedy())
    with pytest.raises(ValueError, match=r"stop=\('a',\) needs a tokenizer"):
        loopcd.generate(own_model, None, [[1]], loopcd.Greedy(), stop="a")
    with pytest.raises(ValueError, match="stream yields text, but the model came without a tokenizer"):
        loopcd.stream(own_model, None, [1], loopcd.Greedy())


def test_the_detailed_output_is_transformers_own(own_model: LoopedModel) -> None:
    output = own_model.generate(
        torch.tensor([[1, 2]]), custom_generate=loopcd.Greedy(), max_new_tokens=2, return_dict_in_generate=True
    )
    assert isinstance(output, LoopedOutput)
    assert isinstance(output.loops, Tensor) and output.loops.shape == (1, 2)
