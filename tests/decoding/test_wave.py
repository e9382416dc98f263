"""A text that runs ahead of itself gets the tokens that it gets undrafted; and it runs ahead only while that pays."""

import gc
import weakref
from itertools import product
from typing import Any

import pytest
import torch

import loopcd
from decoding.runs import run, sharp
from loopcd.decoding import wave
from loopcd.decoding.draft import ENOUGH, DraftPlan
from loopcd.decoding.passes import PassCosts
from loopcd.decoding.wave import WavePace
from loopcd.models import LoopedModel
from tools import LATER, MAKERS, byte_tokenizer

METHODS = {
    "greedy": lambda **more: loopcd.Greedy(**more),
    "amateur before the draft": lambda **more: loopcd.LoopCD(1, 0.9, 0.05, **more),
    "amateur after the draft": lambda **more: loopcd.LoopCD(2, 0.9, 0.05, **more),
    "own coda": lambda **more: loopcd.LoopCD(1, 0.9, 0.05, coda="own", **more),
    "guidance": lambda **more: loopcd.LoopGuidance(**more),
}
WAVE = loopcd.SelfDraft(1, wave=True, fallback=False)


def agreeing() -> LoopedModel:
    """A model that forgets its latent: every loop says the same."""
    model = MAKERS["huginn"]()
    with torch.no_grad():
        model.transformer["adapter"].weight[:, : model.config.n_embd] = 0  # pyright: ignore
    return model


@pytest.fixture(scope="module")
def sharpened() -> dict[str, LoopedModel]:
    return {name: sharp(make()) for name, make in {**MAKERS, **LATER}.items()}


@pytest.fixture(scope="module")
def deep() -> LoopedModel:
    return sharp(MAKERS["huginn"](mean_recurrence=12))


def ids_of(seed: int = 0, length: int = 6) -> Any:
    return torch.randint(3, 250, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("family", "name"), [*product(MAKERS, METHODS), *product(LATER, ("amateur after the draft", "own coda", "guidance"))]
)
def test_a_wave_is_undrafted(sharpened: dict[str, LoopedModel], family: str, name: str) -> None:
    model = sharpened[family]
    plain = run(model, ids_of(), METHODS[name](), count=14)
    made = run(model, ids_of(), METHODS[name](draft=WAVE), count=14)
    assert made.sequences.tolist() == plain.sequences.tolist()
    assert (made.contested.tolist(), made.touched.tolist()) == (plain.contested.tolist(), plain.touched.tolist())
    assert made.past_key_values.length == plain.past_key_values.length
    assert made.drafts.proposed > 0 and made.drafts.emitted + made.drafts.plain == 14


@pytest.mark.parametrize("loops", [1, 2, 5, 11])
def test_some_are_accepted_and_some_refused(deep: LoopedModel, loops: int) -> None:
    """However the loops of a draft divide those of the model."""
    plain = run(deep, ids_of(), loopcd.Greedy(), count=24)
    made = run(deep, ids_of(), loopcd.Greedy(draft=loopcd.SelfDraft(loops, wave=True, fallback=False)), count=24)
    assert made.sequences.tolist() == plain.sequences.tolist()
    report = made.drafts
    assert 0 < report.accepted < report.proposed or loops == 11
    # every token takes all loops, or as many as the draft's where it was begun before it was known
    refused = report.proposed - report.accepted
    assert report.ticks <= 23 * loops + (1 + refused) * 12 + loops


def test_looks_on_the_way_replace_what_is_wrong_before_the_last_loop(
    deep: LoopedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = loopcd.Greedy(draft=loopcd.SelfDraft(1, wave=True, fallback=False))
    looking = run(deep, ids_of(), method, count=24)
    monkeypatch.setattr(wave, "AGAIN", ())
    blind = run(deep, ids_of(), method, count=24)
    assert looking.sequences.tolist() == blind.sequences.tolist()
    assert looking.drafts.ticks < blind.drafts.ticks and looking.drafts.proposed > looking.drafts.emitted


def test_a_wave_of_right_drafts_takes_a_tick_for_each_loop_of_a_draft() -> None:
    sure = agreeing()
    report = run(sure, ids_of(2), loopcd.Greedy(draft=loopcd.SelfDraft(2, wave=True, fallback=False)), count=21).drafts
    assert report.accepted == report.proposed == 19
    assert report.ticks == 4 + 19 * 2


@pytest.mark.parametrize("family", [*MAKERS, *LATER])
def test_draws_are_those_of_the_undrafted_text(sharpened: dict[str, LoopedModel], family: str) -> None:
    model = sharpened[family]
    options = {"max_new_tokens": 12, "temperature": 0.8, "top_p": 0.9, "seed": 5, "batch_size": 2}
    prompts = [[5, 6, 7], [9], [4, 4, 8, 10]]
    plain = loopcd.generate(model, None, prompts, loopcd.LoopCD(1, 0.3), **options)
    assert loopcd.generate(model, None, prompts, loopcd.LoopCD(1, 0.3, draft=WAVE), **options) == plain


def test_texts_of_a_batch_run_ahead_each_for_itself(deep: LoopedModel) -> None:
    tokenizer = byte_tokenizer()
    prompts = ["Hello", "A much longer prompt, with more in it", "x", "The quick brown fox", "Why"]
    options = {"max_new_tokens": 18, "stop": "e", "batch_size": 3}
    for method in (loopcd.Greedy, lambda **more: loopcd.LoopCD(3, 0.5, 0.05, **more)):
        plain = loopcd.generate(deep, tokenizer, prompts, method(), **options)
        assert loopcd.generate(deep, tokenizer, prompts, method(draft=loopcd.SelfDraft(3, wave=True)), **options) == plain


def test_it_goes_on_from_any_cache_and_leaves_one_to_go_on_from(deep: LoopedModel) -> None:
    whole = run(deep, ids_of(), loopcd.Greedy(), count=20).sequences
    cache = deep.new_cache()
    with torch.no_grad():
        deep(ids_of()[:, :4], past_key_values=cache)
    drafted = loopcd.Greedy(draft=loopcd.SelfDraft(2, wave=True, fallback=False))
    first = run(deep, ids_of(), drafted, count=9, past_key_values=cache)
    assert first.past_key_values is cache and first.drafts.ticks > 0
    for method in (drafted, loopcd.Greedy()):
        rest = run(deep, first.sequences, method, count=11, past_key_values=cache)
        assert rest.sequences.tolist() == whole.tolist()
        cache.crop(first.sequences.shape[1] - 1)


def test_what_a_processor_raises_leaves_the_callers_cache_as_it_is(deep: LoopedModel) -> None:
    def refuse(text: Any, scores: Any) -> Any:
        if text.shape[1] == 9:
            raise ArithmeticError("no")
        return scores

    cache, method, ids = deep.new_cache(), loopcd.Greedy(draft=WAVE), ids_of(7)
    with pytest.raises(ArithmeticError):
        run(deep, ids, method, count=8, past_key_values=cache, logits_processor=[refuse])
    whole = run(deep, ids, loopcd.Greedy(), count=12).sequences
    assert cache.length >= 6 and run(deep, whole[:, :9], method, count=9, past_key_values=cache).sequences.equal(whole)


def test_a_seed_for_each_row_of_one(sharpened: dict[str, LoopedModel]) -> None:
    model, ids = sharpened["huginn"], ids_of(8)
    wanted, made = (
        run(model, ids, loopcd.Greedy(draft=draft), init_seed=seed).sequences for draft, seed in ((None, 3), (WAVE, [3]))
    )
    assert made.equal(wanted) and not made.equal(run(model, ids, loopcd.Greedy()).sequences)
    with pytest.raises(ValueError, match="init_seed has 2 seeds for 1 rows"):
        run(model, ids, loopcd.Greedy(draft=WAVE), init_seed=[3, 4])


def test_it_ends_with_the_context(ouro: LoopedModel) -> None:
    ids = ids_of(length=ouro.max_context - 5)
    plain, made = (loopcd.generate(ouro, None, ids.tolist(), loopcd.Greedy(draft=draft)) for draft in (None, WAVE))
    assert made == plain and len(made[0].token_ids) == 5


def test_the_rule_learns_from_the_first_tokens() -> None:
    model = agreeing()
    method = loopcd.Greedy(draft=loopcd.SelfDraft(None, None, wave=True, fallback=False))
    first, second = (run(model, ids_of(), method, count=ENOUGH + 12).drafts for _ in range(2))
    assert first.plain >= ENOUGH and first.proposed > 0
    assert second.plain < first.plain and second.proposed > first.proposed


def test_the_rule_chooses_between_rounds_and_waves() -> None:
    """By what passes cost: a wave has as many tokens in flight as it has loops to run."""
    model, rule = agreeing(), loopcd.SelfDraft(None, 4)
    cheap, dear = PassCosts((1.0, 1.0, 1.0, 1.0)), PassCosts((1.0, 1.5, 2.5, 5.0))
    assert DraftPlan.wave_of(4, 32).gain(model, 32, 0.9, 1, cheap) > 1.2 * DraftPlan(4, 8).gain(model, 32, 0.9, 1, cheap)
    assert DraftPlan.wave_of(4, 32).gain(model, 32, 0.3, 1, dear) < 1
    seen_late, seen_soon = (DraftPlan.wave_of(4, 32).gain(model, 32, 0.8, 1, cheap, again) for again in ((), (0.9, 1.0)))
    assert seen_soon > 1.3 * seen_late  # a wrong one that is replaced on the way costs less than one that the last loop refuses
    assert rule.plan(model, 4, waves=None) is None  # it has seen nothing yet
    assert loopcd.SelfDraft(2).plan(model, 4, waves=True) == DraftPlan(2, 2, wave=True)
    run(model, ids_of(), loopcd.Greedy(draft=rule), count=ENOUGH + 2)
    plan, rounds = rule.plan(model, 4, waves=None), rule.plan(model, 4)
    assert plan is not None and rounds is not None and not rounds.wave
    assert (plan.expected or 0) >= (rounds.expected or 0)


def test_refused_drafts_are_given_up_and_tried_again_seldom() -> None:
    pace, drafted = WavePace(8, lambda width, chance: chance * width), 0
    for _ in range(400):
        if pace.width() > 1:
            assert pace.width() == 2  # one draft at a time
            drafted += 1
            pace.saw(False)
        else:
            pace.plain()
    assert 2 <= drafted <= 5


def test_while_waves_rest_for_longer_than_the_text_it_is_written_without_ticks(deep: LoopedModel) -> None:
    draft = loopcd.SelfDraft(2, wave=True)
    plan = draft.plan(deep, 12, waves=True)
    assert plan is not None
    pace = wave.wave_pace(deep, 12, plan, 1)
    pace.chance, pace.wait = None, 30
    plain, resting, trying = (run(deep, ids_of(), loopcd.Greedy(draft=each), count=20) for each in (None, draft, draft))
    assert plain.sequences.equal(resting.sequences) and plain.sequences.equal(trying.sequences)
    assert (resting.drafts.ticks, resting.drafts.plain, resting.drafts.proposed) == (0, 20, 0)
    assert trying.drafts.ticks > 0 and trying.drafts.proposed > 0  # ten tokens later


def test_a_wave_is_as_wide_as_pays() -> None:
    pace = WavePace(8, lambda width, chance: 1 + chance - 0.1 * abs(width - 8 * chance))
    for _ in range(2):
        assert pace.width() == 2
        pace.saw(True)
    assert pace.width() == 7
    for _ in range(4):
        pace.saw(False)
    assert 2 <= pace.width() <= 5
    stubborn = WavePace(8, lambda width, chance: 2 * chance, chance=0.9)
    for _ in range(8):
        stubborn.saw(False)
    assert stubborn.width() == 1 and stubborn.wait > 0


def test_what_is_no_switch_is_refused() -> None:
    with pytest.raises(ValueError, match="wave=3: True or False"):
        loopcd.SelfDraft(wave=3)  # pyright: ignore[reportArgumentType]


def test_what_is_learnt_of_a_model_does_not_keep_it() -> None:
    model = MAKERS["ouro"]()
    run(model, ids_of(), loopcd.Greedy(draft=loopcd.SelfDraft(1, wave=True)), count=8)
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None
