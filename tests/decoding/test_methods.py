"""The methods that LoopCD is compared with, and selective LoopCD, each against a slow reading."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import loopcd
from decoding.runs import run, tokens_of
from decoding.slow import Slow, Text, contrast, decode, entropy, greedy, guided, plausible_count
from loopcd.decoding.reader import Reader, Reading
from loopcd.decoding.scoring import GuidedScorer, Scores
from loopcd.decoding.selective import kind_numeric, kind_operator
from loopcd.models import LoopedModel
from standin import devices, placed
from tools import MAKERS, Golden, left_padded, logits_of, random_ids

# Greedy


def test_greedy_is_what_generate_does_without_a_method(model: LoopedModel) -> None:
    ids, mask = left_padded([random_ids(1, time, seed=time)[0] for time in (3, 8)])
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    assert model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, custom_generate=loopcd.Greedy()).equal(
        plain
    )


@pytest.mark.parametrize("family", ["huginn", "ouro"])
@pytest.mark.parametrize("text", ["s1", "s2"])
def test_greedy_on_the_golden_models(family: str, text: str, request: pytest.FixtureRequest) -> None:
    golden: Golden = request.getfixturevalue(f"golden_{family}")
    made = tokens_of(golden.model, golden.ids(text), loopcd.Greedy(), count=32)
    assert made == [golden.arrays[f"{text}.greedy_tokens"].tolist()]


# NoiseCD


@pytest.mark.parametrize(("noise", "strength", "seed"), [(0.5, 0.3, 0), (2.0, 0.9, 5)])
def test_noisecd_by_a_slow_reading(own_model: LoopedModel, noise: float, strength: float, seed: int, slow_of: Any) -> None:
    slow = slow_of(own_model)
    head = own_model.lm_head.weight.detach().double()

    def rule(ids: list[int]) -> tuple[int, bool]:
        hidden, step = slow.hidden(ids), len(ids) - 5
        drawn = torch.randn(len(hidden), generator=torch.Generator().manual_seed(seed * 1_000_003 + step)).double()
        noisy = hidden + noise * hidden.pow(2).mean().sqrt() * drawn
        return contrast(slow.said(ids, slow.loops), head @ noisy, strength)

    prompt = random_ids(1, 6, seed=9)
    found = run(own_model, prompt, loopcd.NoiseCD(noise, strength, seed=seed))
    assert found.sequences[0, 6:].tolist() == decode(prompt[0].tolist(), 10, rule)
    assert found.sequences.tolist() != run(own_model, prompt, loopcd.Greedy()).sequences.tolist() or noise < 1


def test_noisecd_follows_its_seed_and_not_the_other_rows(own_model: LoopedModel) -> None:
    rows = [random_ids(1, time, seed=time)[0] for time in (4, 9)]
    ids, mask = left_padded(rows)
    method = loopcd.NoiseCD(3.0, 0.9, seed=1)
    batch = tokens_of(own_model, ids, method, mask=mask)
    assert batch == [tokens_of(own_model, row[None], method)[0] for row in rows]
    assert batch != tokens_of(own_model, ids, loopcd.NoiseCD(3.0, 0.9, seed=2), mask=mask)
    assert tokens_of(own_model, ids, loopcd.NoiseCD(0.0, 0.9), mask=mask) == tokens_of(
        own_model, ids, loopcd.Greedy(), mask=mask
    )  # without noise the amateur is the expert, and (1 − λ) log p_e has the same winner


# MTI


@pytest.mark.parametrize("mixed", [False, True])
def test_mti_by_a_slow_reading(own_model: LoopedModel, mixed: bool, tokenizer: PreTrainedTokenizerFast, slow_of: Any) -> None:
    slow, negative = slow_of(own_model), tokenizer("NO!").input_ids
    threshold, weight = (3.5 if own_model.has_initial_state else 4.1, 3.0) if mixed else (1.0, 1.5)
    uncertain: list[bool] = []

    def rule(ids: list[int]) -> tuple[int, bool]:
        expert = slow.said(ids, slow.loops)
        assert abs(entropy(expert) - threshold) > 1e-3
        uncertain.append(entropy(expert) > threshold)
        return guided(expert, slow.said([*ids, *negative], slow.loops), weight) if uncertain[-1] else greedy(expert)

    prompt = random_ids(1, 6, seed=10)
    method = loopcd.MTI(threshold, weight, "NO!")
    found = run(own_model, prompt, method, count=6, tokenizer=tokenizer)
    assert found.sequences[0, 6:].tolist() == decode(prompt[0].tolist(), 6, rule)
    assert found.touched[0].tolist() == uncertain
    assert len(set(uncertain)) == (2 if mixed else 1)


def test_mti_guides_only_rows_that_are_uncertain(own_model: LoopedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [random_ids(1, time, seed=time)[0] for time in (4, 9, 6)]
    ids, mask = left_padded(rows)
    method = loopcd.MTI(3.2, 3.0)
    batch = run(own_model, ids, method, mask=mask, tokenizer=tokenizer)
    assert 0 < int(batch.touched.sum()) < batch.touched.numel()
    for row, prompt in enumerate(rows):
        alone = run(own_model, prompt[None], method, tokenizer=tokenizer)
        assert batch.sequences[row, ids.shape[1] :].tolist() == alone.sequences[0, len(prompt) :].tolist()
        assert batch.touched[row].tolist() == alone.touched[0].tolist()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("exited", [None, "last", "skip"])
def test_mti_leaves_the_cache_as_if_it_had_not_been_there(model: LoopedModel, padded: bool, exited: Any) -> None:
    rows = [random_ids(1, time, seed=time)[0] for time in ((4, 9) if padded else (9, 9))]
    ids, mask = left_padded(rows)
    leave = None if exited is None else loopcd.EarlyExit(0.7, exited=exited)
    readers = [Reader(model, exit=leave) for _ in range(2)]
    said = []
    for reader, guidance in zip(readers, (True, False), strict=True):
        texts = [ids, *random_ids(2, 3, seed=7).split(1, dim=1)]
        for part, part_mask in zip(texts, (mask, None, None, None), strict=True):
            reading, _ = reader.read(part, part_mask)
            said.append(reading.logits)
            if guidance:
                scores = GuidedScorer(reader, [1, 2, 3, 4], 0.0, 1.5, 0.1).score(reading, reader.cache)
                assert scores.touched.all()
    with_guidance, without = readers[0].cache, readers[1].cache
    assert all(torch.equal(one, other) for one, other in zip(said[:4], said[4:], strict=True))
    assert with_guidance.length == without.length == 12
    if padded:
        assert with_guidance.valid is not None and without.valid is not None
        assert torch.equal(with_guidance.valid, without.valid)
    else:
        assert with_guidance.valid is None is without.valid
    if exited == "skip":
        assert with_guidance.depths is not None and without.depths is not None
        assert torch.equal(with_guidance.depths, without.depths)


def test_mti_does_not_copy_the_cache(huginn: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    new_cache = type(huginn).new_cache
    monkeypatch.setattr(type(huginn), "new_cache", lambda *args, **named: (made.append(1), new_cache(*args, **named))[1])
    reader = Reader(huginn)
    reading, _ = reader.read(random_ids(1, 5))
    slots = [slot._kept[0].data_ptr() for slot in reader.cache.layers]  # pyright: ignore
    GuidedScorer(reader, [1, 2, 3], 0.0, 1.5, 0.1).score(reading, reader.cache)
    assert made == [1]
    assert slots == [slot._kept[0].data_ptr() for slot in reader.cache.layers]  # pyright: ignore


# Selective LoopCD


class Signs:
    """A tokenizer that shows two tokens of five as numbers and two as operators."""

    def decode(self, ids: list[int]) -> str:
        return (" 12", "+", "y", "3", "=")[ids[0] % 5]


@pytest.mark.parametrize(
    ("family", "where"),
    [
        *product(["huginn", "ouro"], ["hard", "easy", "numeric"]),
        ("huginn", "all"),
        ("ouro", "operator"),
        ("huginn", "hard numeric"),
        ("ouro", "easy & operator"),
        ("huginn", "hard∩operator"),
    ],
)
def test_selective_loopcd_by_a_slow_reading(family: str, where: str) -> None:
    model = MAKERS[family](5 if family == "huginn" else 3)
    with torch.no_grad():
        model.lm_head.weight.mul_(4)  # logits so large that margins fall by 1.5
    prompts = [random_ids(1, time, seed=time)[0] for time in (4, 7, 6)]
    ids, mask = left_padded(prompts)
    method = loopcd.LoopCD(1, 0.9, plausibility=0.01, where=where)
    output = run(model, ids, method, mask=mask, count=8, tokenizer=Signs())
    slow = Slow(model)
    for row, prompt in enumerate(prompts):
        text, touched, contested = Text(prompt.tolist()), [], []
        for _ in range(8):
            early = [slow.early(text, loop) for loop in range(1, model.num_loops)]
            by_loop = torch.stack([*early, slow.said(text, model.num_loops)])  # [loop, vocab]
            expert = by_loop[-1]
            winner = int(expert.argmax())
            margins = [float(z[winner] - max(z[:winner].max(), z[winner + 1 :].max())) for z in by_loop]
            kinds = {
                "all": True,
                "hard": max(margins) - margins[-1] >= 1.5,
                "easy": max(margins) - margins[-1] < 1.5,
                "numeric": winner % 5 in (0, 3),
                "operator": winner % 5 in (1, 4),
            }
            contested.append(plausible_count(expert, 0.01) > 1)
            touched.append(contested[-1] and all(kinds[kind] for kind in kinds if kind in where))
            token, clear = contrast(expert, by_loop[0], 0.9, 0.01) if touched[-1] else greedy(expert)
            assert clear
            text.append(token)
        assert output.sequences[row, ids.shape[1] :].tolist() == text[len(prompt) :]
        assert output.touched[row].tolist() == touched
        assert output.contested[row].tolist() == contested
    share = float(output.touched.float().mean())
    assert 0 < share < 1
    if where != "all":
        assert share < float(output.contested.float().mean())


def test_the_share_of_positions_touched_is_reported(own_model: LoopedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    method = loopcd.LoopCD(1, 0.9, plausibility=0.5, where="easy")
    made = loopcd.generate(own_model, tokenizer, "some words", method, max_new_tokens=20)
    ids = torch.tensor([tokenizer("some words").input_ids])
    output = run(own_model, ids, method, count=20, eos_token_id=258, pad_token_id=256)
    assert (made.touched, made.contested) == (int(output.touched.sum()), int(output.contested.sum()))
    assert 0 < made.touched <= made.contested < 20


@pytest.mark.parametrize("text", ["1", " 42", "007", "1\n"])
def test_numbers(text: str) -> None:
    assert kind_numeric(text) and not kind_operator(text)


@pytest.mark.parametrize("text", ["+", " -", "*", "/", "=", " × ", "÷", "%", " x"])
def test_operators(text: str) -> None:
    assert kind_operator(text) and not kind_numeric(text)


@pytest.mark.parametrize(
    "text", ["", " ", "a", "x1", ".", "1+", "+1", "-5", "3.14", "1,000", "٣", "²", "**", "<=", "X", "$", "one", "2nd"]
)
def test_neither_numbers_nor_operators(text: str) -> None:
    assert not kind_numeric(text) and not kind_operator(text)


# Bad input

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loopcd.LoopCD(strength=-0.1), "strength=-0.1: a number of at least 0"),
        (lambda: loopcd.LoopCD(strength=NAN), "strength=nan: a number of at least 0"),
        (lambda: loopcd.LoopCD(strength=INF), "strength=inf: a number of at least 0"),
        (lambda: loopcd.LoopCD(plausibility=0.0), r"plausibility=0.0: above 0, and at most 1"),
        (lambda: loopcd.LoopCD(plausibility=1.01), r"plausibility=1.01: above 0, and at most 1"),
        (lambda: loopcd.LoopCD(plausibility=NAN), r"plausibility=nan: above 0"),
        (lambda: loopcd.LoopCD(1.5), "amateur_loop=1.5: a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: loopcd.LoopCD(True), "amateur_loop=True: a whole number"),
        (lambda: loopcd.LoopCD(coda="their"), 'coda=\'their\': "own" or "shared"'),  # pyright: ignore[reportArgumentType]
        (lambda: loopcd.LoopCD(where="somewhere"), 'where=\'somewhere\': "all", "hard"'),
        (lambda: loopcd.LoopCD(where=""), "where=''"),
        (lambda: loopcd.LoopCD(where="hard easy"), "where='hard easy'"),
        (lambda: loopcd.LoopCD(where="numeric operator"), "where='numeric operator'"),
        (lambda: loopcd.LoopCD(where="all hard"), "where='all hard'"),
        (lambda: loopcd.LoopCD(where="hard", exit=loopcd.EarlyExit(min_loops=15)), "where='hard' looks at all loops"),
        (lambda: loopcd.NoiseCD(noise=-1.0), "noise=-1.0: a number of at least 0"),
        (lambda: loopcd.NoiseCD(noise=NAN), "noise=nan"),
        (lambda: loopcd.NoiseCD(strength=-1.0), "strength=-1.0"),
        (lambda: loopcd.NoiseCD(plausibility=2.0), "plausibility=2.0"),
        (lambda: loopcd.NoiseCD(seed=1.5), r"seed=1\.5: a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: loopcd.MTI(entropy_threshold=-1.0), "entropy_threshold=-1.0: a number of at least 0"),
        (lambda: loopcd.MTI(entropy_threshold=NAN), "entropy_threshold=nan"),
        (lambda: loopcd.MTI(guidance=INF), "guidance=inf: a number"),
        (lambda: loopcd.LoopCD(amateur_loop=0), "amateur_loop=0: a whole number of at least 1"),
        (lambda: loopcd.LoopCD(amateur_loop=-3), "amateur_loop=-3: a whole number of at least 1"),
        (lambda: loopcd.LoopCD(amateur_loop="late"), "amateur_loop='late': a whole number .*, or \"auto\""),  # pyright: ignore
        (lambda: loopcd.MTI(negative_prompt=""), "negative_prompt='': a text of at least one token"),
        (lambda: loopcd.MTI(plausibility=0), "plausibility=0: above 0"),
        (lambda: loopcd.SelfEval(candidates=0), "candidates=0: a whole number of at least 1"),
        (lambda: loopcd.SelfEval(candidates=True), "candidates=True"),
        (lambda: loopcd.SelfEval(temperature=0), "temperature=0: a number above 0"),
        (lambda: loopcd.SelfEval(temperature=NAN), "temperature=nan"),
        (lambda: loopcd.SelfEval(top_p=0.0), "top_p=0.0: above 0, and at most 1"),
        (lambda: loopcd.SelfEval(seed="x"), "seed='x': a whole number"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("amateur", [4, 5, 99])
def test_an_amateur_that_is_none_of_the_loops_before_the_last(own_model: LoopedModel, amateur: int) -> None:
    with pytest.raises(ValueError, match=f"amateur_loop={amateur}: from 1 to 3, one less than the 4 loops that are run"):
        run(own_model, random_ids(1, 3), loopcd.LoopCD(amateur))
    with pytest.raises(ValueError, match="amateur_loop=2: from 1 to 1, one less than the 2 loops that are run"):
        run(own_model, random_ids(1, 3), loopcd.LoopCD(2), num_loops=2)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (loopcd.MTI(), "MTI reads its negative prompt: pass the tokenizer"),
        (loopcd.SelfEval(), "SelfEval asks the model about its answers: pass the tokenizer"),
        (loopcd.LoopCD(1, where="numeric"), "where='numeric' reads the tokens' text: pass the tokenizer"),
    ],
)
def test_methods_that_need_a_tokenizer(ouro: LoopedModel, method: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(ouro, random_ids(1, 3), method)


def test_a_class_in_place_of_a_method(own_model: LoopedModel) -> None:
    with pytest.raises(ValueError, match=r"custom_generate=LoopCD: a method with its settings, .* as in LoopCD\(\)"):
        own_model.generate(random_ids(1, 3), custom_generate=loopcd.LoopCD)


def test_a_name_in_place_of_a_model() -> None:
    with pytest.raises(ValueError, match="model='tiny-huginn': a looped model, as in model, tokenizer = loopcd"):
        loopcd.generate("tiny-huginn", None, "hi")  # pyright: ignore[reportArgumentType]


def test_beam_search_is_refused(own_model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="num_beams=2: LoopCD chooses one token at a time; use num_beams=1"):
        run(own_model, random_ids(1, 3), loopcd.LoopCD(1), num_beams=2)


@pytest.mark.parametrize("make", [loopcd.NoiseCD, loopcd.MTI, loopcd.SelfEval])
def test_methods_that_cannot_be_drafted(make: Any) -> None:
    with pytest.raises(ValueError, match=rf"draft=SelfDraft\(.*\): {make.__name__} cannot be drafted; Greedy, LoopCD and"):
        make(draft=loopcd.SelfDraft())
    with pytest.raises(ValueError, match="draft=4: a SelfDraft, or None"):
        make(draft=4)


# Numbers gone wrong

BROKEN = "the model's logits hold numbers that are not finite, so no token can be chosen"
ROUNDS, WAVE = loopcd.SelfDraft(1, 3, fallback=False), loopcd.SelfDraft(1, wave=True, fallback=False)


@pytest.mark.parametrize(
    "method",
    [
        loopcd.Greedy(),
        loopcd.Greedy(draft=ROUNDS),
        loopcd.Greedy(draft=WAVE),
        loopcd.LoopCD(1, 0.9),
        loopcd.LoopCD("auto", 0.9),
        loopcd.LoopCD(1, 0.9, draft=ROUNDS),
        loopcd.LoopCD(1, 0.9, draft=WAVE),
        loopcd.LoopGuidance(),
        loopcd.NoiseCD(),
        loopcd.MTI(),
    ],
    ids=repr,
)
def test_no_method_chooses_from_numbers_that_are_not_finite(method: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    model = MAKERS["huginn"]()
    with torch.no_grad():
        model.lm_head.weight[7] = NAN  # pyright: ignore[reportIndexIssue]
    for prompts, temperature in product((["ab"], ["ab", "c", "de", "fg", "h"]), (0.0, 1.0)):
        with pytest.raises(ValueError, match=BROKEN):
            loopcd.generate(model, tokenizer, prompts, method, max_new_tokens=1, temperature=temperature)


@pytest.mark.parametrize("device", ["cpu", "standin:0"])
@pytest.mark.parametrize("method", [loopcd.Greedy(), loopcd.LoopCD(1, 0.9, 0.01), loopcd.NoiseCD()], ids=repr)
def test_numbers_that_go_wrong_in_the_middle_of_a_text(method: Any, device: str) -> None:
    model, ids = MAKERS["ouro"](), random_ids(2, 5)
    read = {*ids.flatten().tolist(), *tokens_of(model, ids, method, count=1)[0]}
    with torch.no_grad():
        model.get_input_embeddings().weight[[token for token in range(model.config.vocab_size) if token not in read]] = NAN  # pyright: ignore
    with devices():
        model, ids = (model, ids) if device == "cpu" else (placed(model, device), ids.to(device))
        assert len(tokens_of(model, ids[:1], method, count=2)[0]) == 2
        with pytest.raises(ValueError, match=BROKEN):
            tokens_of(model, ids, method, count=12)


def test_scores_that_are_not_numbers_name_a_possible_token() -> None:
    nowhere = torch.zeros(3, dtype=torch.bool)
    values, tokens = torch.tensor([[NAN, NAN], [1.0, NAN], [2.0, 2.0]]), torch.tensor([[4, 3], [4, 3], [1, 0]])
    assert Scores(values, tokens, 5, nowhere, nowhere).best().tolist() == [3, 3, 0]


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        loopcd.LoopCD().strength = 0.5  # pyright: ignore[reportAttributeAccessIssue]


def test_what_a_scorer_is_given(own_model: LoopedModel) -> None:
    """The reader's reading is the model's own forward pass."""
    ids = random_ids(2, 5)
    reading, loops = Reader(own_model).read(ids)
    assert isinstance(reading, Reading)
    torch.testing.assert_close(reading.logits, logits_of(own_model, ids)[:, -1], rtol=0, atol=1e-5)
    assert loops.tolist() == [own_model.num_loops] * 2
