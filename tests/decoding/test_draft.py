"""Drafting changes nothing but the time: same tokens, same draws, same counts."""

import sys
from threading import Thread
from typing import Any

import pytest
import torch
from transformers import SynthIDTextWatermarkingConfig
from transformers.generation.streamers import BaseStreamer

import loopcd
from decoding.runs import run, sharp
from loopcd.decoding.draft import CLOCKED, ENOUGH, FIRST, WEIGHT, Agreement, DraftPlan, DraftReport, RoundPace, _known, pace_of
from tools import MAKERS

PROMPTS = ["Hello", "A much longer prompt, with more in it", "x", "The quick brown fox jumps"]
METHODS = {
    "greedy": lambda **more: loopcd.Greedy(**more),
    "amateur before the draft": lambda **more: loopcd.LoopCD(1, 0.3, **more),
    "amateur at the draft": lambda **more: loopcd.LoopCD(2, 0.9, **more),
    "amateur after the draft": lambda **more: loopcd.LoopCD(3, 0.9, **more),
    "own coda": lambda **more: loopcd.LoopCD(2, 0.9, coda="own", **more),
}


FAMILIES = ["huginn_raven", "ouro", "hrm_text"]


@pytest.fixture(scope="module", params=list(MAKERS))
def model(request):
    deeper = {"H_cycles": 4} if request.param == "hrm" else {}
    return sharp(MAKERS[request.param](**deeper))


@pytest.mark.parametrize("name", METHODS)
def test_drafted_is_undrafted(model, tokenizer, name):
    """Every family with every method; over these, drafts and batches change so that each pair of settings comes up."""
    method, family = list(METHODS).index(name), FAMILIES.index(model.config.model_type)
    draft = [(1, 2), (2, 5)][(method + family) % 2]
    batch_size = [1, 4][(method // 2 + family) % 2]
    options: dict[str, Any] = {"max_new_tokens": 14, "batch_size": batch_size}
    plain = loopcd.generate(model, tokenizer, PROMPTS, METHODS[name](), **options)
    drafting = METHODS[name](draft=loopcd.SelfDraft(*draft, fallback=False))
    assert loopcd.generate(model, tokenizer, PROMPTS, drafting, **options) == plain


@pytest.mark.parametrize("draft", [loopcd.SelfDraft(2, 4, fallback=False), loopcd.SelfDraft(None, None)])
def test_sampling_draws_what_it_would_draw_undrafted(model, tokenizer, draft):
    options = {"max_new_tokens": 16, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    plain = loopcd.generate(model, tokenizer, PROMPTS, loopcd.LoopCD(1, 0.3), **options)
    drafted = loopcd.generate(model, tokenizer, PROMPTS, loopcd.LoopCD(1, 0.3, draft=draft), **options)
    assert drafted == plain


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_drafted_is_undrafted_on_the_golden_models(request, family):
    """Whose drafts are mostly refused."""
    golden = request.getfixturevalue(f"golden_{family}")
    contrasted = METHODS["amateur before the draft"]
    cases = [(loopcd.Greedy, 2, "s0"), (loopcd.Greedy, 5, "s2"), (contrasted, 5, "s0"), (contrasted, 2, "s2")]
    for method, length, text in cases:
        drafting = method(draft=loopcd.SelfDraft(1, length, fallback=False))
        plain, drafted = (run(golden.model, golden.ids(text), each, count=12) for each in (method(), drafting))
        assert drafted.sequences.tolist() == plain.sequences.tolist()


def test_stop_strings_end_a_row_inside_a_round(model, tokenizer):
    full = loopcd.generate(model, tokenizer, PROMPTS, loopcd.Greedy(), max_new_tokens=14)
    stop = next(char for each in full for char in each.text[3:] if char.isascii() and char.isprintable())
    options = {"max_new_tokens": 14, "stop": stop}
    plain = loopcd.generate(model, tokenizer, PROMPTS, loopcd.Greedy(), **options)
    assert any(each.finish_reason == "stop" for each in plain)
    drafting = loopcd.Greedy(draft=loopcd.SelfDraft(2, 4, fallback=False))
    assert loopcd.generate(model, tokenizer, PROMPTS, drafting, **options) == plain


def test_stream_of_a_draft_is_the_text(model, tokenizer):
    method = loopcd.LoopCD(1, 0.3, draft=loopcd.SelfDraft(2, 4, fallback=False))
    text = loopcd.generate(model, tokenizer, PROMPTS[0], loopcd.LoopCD(1, 0.3), max_new_tokens=30).text
    assert "".join(loopcd.stream(model, tokenizer, PROMPTS[0], method, max_new_tokens=30)) == text


def test_processors_see_each_row_s_own_text(model):
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 14, "do_sample": False, "repetition_penalty": 1.4, "attention_mask": torch.ones_like(ids)}
    plain = model.generate(ids, custom_generate=loopcd.LoopCD(1, 0.3), **options)
    method = loopcd.LoopCD(1, 0.3, draft=loopcd.SelfDraft(2, 4, fallback=False))
    assert torch.equal(model.generate(ids, custom_generate=method, **options), plain)


def test_the_first_loops_are_never_run_twice(model, monkeypatch):
    """A round of k tokens runs k passes of the first loops and one of the others, whatever is accepted."""
    ran: list[tuple[int, int]] = []
    advance = type(model).advance
    monkeypatch.setattr(
        type(model), "advance", lambda self, state: ran.append((state.loop + 1, state.hidden.shape[1])) or advance(self, state)
    )
    ids = torch.randint(0, 250, (1, 6), generator=torch.Generator().manual_seed(0))
    method = loopcd.Greedy(draft=loopcd.SelfDraft(2, 4, fallback=False))
    made = model.generate(ids, custom_generate=method, max_new_tokens=17, do_sample=False, return_dict_in_generate=True)
    after_prompt = [entry for entry in ran if entry[1] != ids.shape[1]]
    assert all(time == 1 for loop, time in after_prompt if loop <= 2)
    full = [time for loop, time in after_prompt if loop == model.num_loops]
    assert len(full) == made.drafts.rounds + made.drafts.plain - 1  # the prompt's pass is a plain one
    assert sum(time for _, time in after_prompt) == model.num_loops * sum(full)


def test_the_report_adds_up(model):
    ids = torch.randint(0, 250, (1, 6), generator=torch.Generator().manual_seed(0))
    method = loopcd.Greedy(draft=loopcd.SelfDraft(3, 3, fallback=False))
    made = model.generate(ids, custom_generate=method, max_new_tokens=30, do_sample=False, return_dict_in_generate=True)
    report = made.drafts
    assert report.emitted + report.plain == 30
    assert report.accepted <= report.proposed
    assert report.emitted <= report.accepted + report.rounds
    assert (report.loops, report.length) == (3, 3)


def test_poor_drafts_are_given_up():
    pace = RoundPace(length=4, break_even=1.6)
    drafted = []
    for _ in range(400):
        length = pace.next()
        if length > 1:
            drafted.append(length)
            pace.saw(1.0)  # nothing accepted
    assert 2 <= len(drafted) <= 5  # it is tried again, more and more seldom
    assert set(drafted) == {2}  # by the shortest rounds only


def test_good_drafts_go_on_after_a_bad_round():
    pace = RoundPace(length=4, break_even=1.6)
    for made in (2.0, 2.0):
        assert pace.next() == 2
        pace.saw(made)
    for made in (4.0, 3.0, 1.0, 4.0, 1.0, 3.0):
        assert pace.next() == 4
        pace.saw(made)
    assert pace.next() == 4


def test_drafts_that_turn_poor_are_given_up():
    pace = RoundPace(length=4, break_even=2.0, trusted=True, recent=4.0)
    for _ in range(6):
        if pace.next() > 1:
            pace.saw(1.0)
    assert not pace.trusted and pace.wait > 0


def test_a_pace_that_several_threads_go_by() -> None:
    pace, wrong = RoundPace(length=4, break_even=1.6, trusted=True, clocked=True), list[Exception]()

    def work() -> None:
        try:
            for _ in range(5000):
                pace.took(1e-3, 1, drafted=False)
                pace.took(1e-3, 2, drafted=True)
        except Exception as error:
            wrong.append(error)

    threads, interval = [Thread(target=work) for _ in range(4)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_rows_that_are_not_contested_are_no_near_ties() -> None:
    model = sharp(MAKERS["ouro"](), scale=8.0)
    ids = torch.randint(0, 250, (6, 6), generator=torch.Generator().manual_seed(0))
    method = loopcd.LoopCD(draft=loopcd.SelfDraft(loops=1, fallback=False))
    options = {"max_new_tokens": 16, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    made = model.generate(ids, **options, return_dict_in_generate=True, custom_generate=method)
    assert made.contested.any() and not made.contested.all()
    assert made.drafts.near_ties <= 2


def test_what_is_not_given_is_chosen_by_the_rule_but_given_loops_draft_four_at_once() -> None:
    model = MAKERS["huginn"]()
    assert loopcd.SelfDraft().plan(model, 8) is None  # until it has seen the model write
    given = loopcd.SelfDraft(loops=2).plan(model, 8)
    assert given is not None and (given.loops, given.length) == (2, 4)


@pytest.mark.parametrize(("expected", "first"), [(1.5, 6), (1.05, 1), (0.8, 1)])
def test_a_plan_by_rule_starts_from_what_it_expects(model, expected, first):
    pace = pace_of(type(model)(model.config), 4, DraftPlan(1, 6, expected), batch=1)
    for _ in range(FIRST):  # without a draft, so that there is something to compare with
        assert pace.next() == 1
        pace.took(1e-3, 1, drafted=False)
    assert pace.next() == first


@pytest.mark.parametrize(
    ("break_even", "made", "seconds", "rounds", "goes_on"),
    [
        (1.6, 4.0, 3.5e-3, CLOCKED, True),
        (1.6, 4.0, 4.5e-3, CLOCKED, False),  # however many are accepted
        (3.0, 2.0, 1.5e-3, 3 * CLOCKED, True),  # however few were expected to pay
        (3.0, 1.0, 1.5e-3, CLOCKED // 2, False),  # both say so: sooner
    ],
)
def test_a_clocked_pace_goes_by_what_tokens_take(
    break_even: float, made: float, seconds: float, rounds: int, goes_on: bool
) -> None:
    pace = RoundPace(length=4, break_even=break_even, trusted=True, recent=break_even, clocked=True)
    for _ in range(FIRST):
        pace.took(1e-3, 1, drafted=False)
    for _ in range(rounds):
        assert pace.next() == 4
        pace.saw(made)
        pace.took(seconds, made, drafted=True)
    assert pace.trusted is goes_on and (pace.next() == 4) is goes_on


def test_a_short_round_need_not_give_what_a_full_one_must() -> None:
    pace = RoundPace(length=8, break_even=4.5, trusted=True, recent=8.0)
    for _ in range(20):  # with three of its eight tokens drafted it costs two plain passes
        pace.saw(3.0, 3)
    assert pace.trusted
    for _ in range(20):
        pace.saw(1.5, 3)
    assert not pace.trusted


def test_rounds_end_with_the_first_draft_that_is_not_sure() -> None:
    """The tokens stay those of the undrafted method, and the rule goes on learning."""
    model = sharp(MAKERS["ouro"](), scale=4.0)
    drafting, loops = loopcd.SelfDraft(), model.num_loops
    known = [Agreement(0.9, 0.8, 0.79) for _ in drafting.candidates(loops)]
    _known(model)[loops, drafting.candidates(loops)] = known
    plan = drafting.plan(model, loops)
    assert plan is not None and plan.sure
    pace = pace_of(model, loops, plan, 1)
    pace.clocked, pace.trusted, pace.wait, pace.break_even = False, True, 0, 0.1
    ids = torch.randint(0, 250, (1, 6), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 40, "do_sample": False}
    plain = model.generate(ids, custom_generate=loopcd.Greedy(), **options)
    method = loopcd.Greedy(draft=drafting)
    made = model.generate(ids, custom_generate=method, return_dict_in_generate=True, **options)
    assert torch.equal(made.sequences, plain)
    report = made.drafts
    assert report.rounds > 0 and report.proposed < report.rounds * (plan.length - 1)  # some ended early
    learned = drafting.agreement(model, loops, plan.loops)
    assert learned is not None and learned.seen > WEIGHT and learned.both <= min(learned.right, learned.sure)


def test_the_rule_learns_from_the_first_tokens(tokenizer):
    """Nothing is drafted until it has seen enough, even across texts; then every text is drafted."""
    model = sharp(MAKERS["ouro"](), scale=8.0)  # so sharp that the loops agree
    method = loopcd.Greedy(draft=loopcd.SelfDraft(None, None, fallback=False))
    ids = torch.randint(0, 250, (2, 6), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": ENOUGH + 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    options |= {"return_dict_in_generate": True, "custom_generate": method}
    first, second = (model.generate(ids, **options).drafts for _ in range(2))
    assert first.plain >= ENOUGH and first.rounds > 0
    assert second.plain < ENOUGH // 2 and second.rounds > first.rounds
    assert (first.loops, first.length) == (second.loops, second.length)
    assert 1 <= first.loops <= model.num_loops // 2


def test_batches_learn_by_themselves():
    """Their rounds are not those of single texts: what one is taught, the other does not hear."""
    model, drafting = sharp(MAKERS["ouro"](), scale=4.0), loopcd.SelfDraft(fallback=False)
    _known(model)[4, drafting.candidates(4)] = [Agreement(0.9, 0.8, 0.79) for _ in drafting.candidates(4)]
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(0))
    made = model.generate(
        ids, custom_generate=loopcd.Greedy(draft=drafting), max_new_tokens=30, do_sample=False, return_dict_in_generate=True
    )
    alone, together = (drafting.agreement(model, 4, made.drafts.loops, rows) for rows in (1, 3))
    assert alone == Agreement(0.9, 0.8, 0.79)
    assert together is not None and together.seen > WEIGHT and together.right != 0.9
    assert drafting.agreement(model, 4, made.drafts.loops, 2) == alone  # which begins with that, too


def test_drafting_keeps_nothing_beside_the_plain_cache(model):
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(0))
    sizes = []
    for draft in (None, loopcd.SelfDraft(2, 4, fallback=False)):
        cache = model.new_cache(limit=40)
        model.generate(
            ids,
            custom_generate=loopcd.Greedy(draft=draft),
            past_key_values=cache,
            max_new_tokens=34,
            do_sample=False,
            attention_mask=torch.ones_like(ids),
        )
        sizes.append(cache.nbytes)
    assert sizes[1] == sizes[0]


def test_drafting_goes_on_from_a_cache(model):
    """The text so far may have been read without a draft."""
    ids = torch.randint(0, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    plain = model.generate(ids, custom_generate=loopcd.Greedy(), **options)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :5], past_key_values=cache)
    method = loopcd.Greedy(draft=loopcd.SelfDraft(2, 4, fallback=False))
    assert torch.equal(model.generate(ids, custom_generate=method, past_key_values=cache, **options), plain)


def test_the_rule_prefers_what_pays(model):
    """With certain acceptance longer rounds gain more; with none, no plan gains."""
    assert DraftPlan(1, 8).gain(model, 8, 1.0) > DraftPlan(1, 2).gain(model, 8, 1.0) > 1
    assert DraftPlan(1, 4).gain(model, 8, 0.0) < 1


def test_accepted_length_counts_tokens_a_round():
    report = DraftReport(loops=1, length=4, rounds=10, row_rounds=10, proposed=30, accepted=21, emitted=31)
    assert report.acceptance == pytest.approx(0.7)
    assert report.accepted_length == pytest.approx(3.1)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: loopcd.SelfDraft(loops=0), "loops=0"),
        (lambda: loopcd.SelfDraft(length=1), "length=1"),
        (lambda: loopcd.SelfDraft(length=2.5), "length=2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: loopcd.Greedy(draft=3), "draft=3"),  # pyright: ignore[reportArgumentType]
        (lambda: loopcd.Greedy(draft=loopcd.SelfDraft(), exit=loopcd.EarlyExit()), "exit="),
        (lambda: loopcd.LoopCD(draft=loopcd.SelfDraft(), where="hard"), "where='hard'"),
    ],
)
def test_bad_settings_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_a_draft_as_deep_as_the_model_is_refused(model, tokenizer):
    method = loopcd.Greedy(draft=loopcd.SelfDraft(loops=model.num_loops))
    with pytest.raises(ValueError, match=f"loops={model.num_loops}: from 1 to {model.num_loops - 1}"):
        loopcd.generate(model, tokenizer, "x", method)


@pytest.mark.parametrize(("seed", "coda"), [(0, "shared"), (1, "own"), (2, "shared"), (3, "own")])
def test_going_on_after_a_batched_draft(own_model, seed, coda):
    """Rows of a batch accept different numbers of drafts; the cache that is left behind must not say otherwise."""
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(seed))
    method = loopcd.LoopCD(1, 0.3, coda=coda, draft=loopcd.SelfDraft(2, 4, fallback=False))
    options = {"custom_generate": method, "do_sample": False, "attention_mask": None}
    at_once = own_model.generate(ids, max_new_tokens=20, **options)
    first = own_model.generate(ids, max_new_tokens=9, return_dict_in_generate=True, **options)
    rest = own_model.generate(first.sequences, max_new_tokens=11, past_key_values=first.past_key_values, **options)
    assert torch.equal(rest, at_once)
    assert first.past_key_values.lengths is None


@pytest.mark.parametrize("seed", [0, 2])
def test_a_row_that_ended_holds_no_more_than_its_text(own_model, seed):
    """Others get far ahead of it; whoever goes on from the cache must not find columns there that it never wrote."""
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(seed))
    method = loopcd.Greedy(draft=loopcd.SelfDraft(own_model.num_loops - 1, 4, fallback=False))
    options = {"custom_generate": method, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    second = own_model.generate(ids, max_new_tokens=2, **options)[0, 7]
    ended = own_model.generate(
        ids, max_new_tokens=16, eos_token_id=int(second), pad_token_id=0, return_dict_in_generate=True, **options
    )
    shortest = min(row.index(int(second)) if second in row else len(row) for row in ended.sequences[:, 6:].tolist())
    assert ended.past_key_values.length <= 6 + shortest


class Ends:
    """A streamer that ends the generation after so many tokens, as a closed connection does."""

    def __init__(self, after: int) -> None:
        self.after, self.got = after, list[int]()

    def put(self, value: torch.Tensor) -> None:
        self.got += value.tolist() if value.ndim == 1 else []
        if len(self.got) == self.after:
            raise InterruptedError

    def end(self) -> None: ...


@pytest.mark.parametrize("wave", [False, True])
@pytest.mark.parametrize("after", [1, 2, 3, 6])
def test_whoever_stops_in_the_middle_finds_no_drafts_in_the_cache(model, wave, after):
    ids = torch.randint(0, 250, (1, 6), generator=torch.Generator().manual_seed(0))
    draft = loopcd.SelfDraft(1, fallback=False, wave=True) if wave else loopcd.SelfDraft(model.num_loops - 1, 4, fallback=False)
    cache, streamer = model.new_cache(), Ends(after)
    with pytest.raises(InterruptedError) as kept:  # the traceback holds on to what was under way
        run(model, ids, loopcd.Greedy(draft=draft), past_key_values=cache, streamer=streamer)
    assert kept is not None and cache.length == ids.shape[1] + after - 1
    text = torch.cat([ids, torch.tensor([streamer.got])], dim=1)
    went_on = run(model, text, loopcd.Greedy(), past_key_values=cache, count=4).sequences
    assert torch.equal(went_on, run(model, text, loopcd.Greedy(), count=4).sequences)


def test_a_cache_goes_on_by_itself_after_a_wave(model):
    ids = torch.randint(0, 250, (1, 6), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache()
    text = run(model, ids, loopcd.Greedy(draft=loopcd.SelfDraft(1, wave=True)), past_key_values=cache, count=5).sequences
    cache.batch_repeat_interleave(2)
    both = run(model, text.repeat(2, 1), loopcd.Greedy(), past_key_values=cache, count=4).sequences
    assert torch.equal(both[:1], run(model, text, loopcd.Greedy(), count=4).sequences) and torch.equal(both[0], both[1])


def test_what_a_batched_draft_left_unread_is_read_by_its_own_settings():
    model = sharp(MAKERS["huginn"]())
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(2))
    more, found = ids.flip(1), list[torch.Tensor]()
    for draft in (None, loopcd.SelfDraft(2, 4, fallback=False)):
        first = run(model, ids, loopcd.Greedy(draft=draft), count=9, init_seed=7)
        cache = first.past_key_values
        assert draft is None or cache.behind > 0
        text = torch.cat([first.sequences, more], dim=1)
        method = loopcd.Greedy(exit=loopcd.EarlyExit(0.9, 1))
        found.append(run(model, text, method, past_key_values=cache, count=1, output_logits=True).logits[0])
    assert torch.allclose(found[0], found[1], atol=1e-4)


def test_what_a_batched_draft_left_unread_takes_no_draws_from_the_next_text(own_model):
    ids, found = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(2)), list[torch.Tensor]()
    for draft in (None, loopcd.SelfDraft(2, 4, fallback=False)):
        first = run(own_model, ids, loopcd.Greedy(draft=draft), count=9)
        noise = loopcd.NoiseCD(1.0, 0.9, 0.01)
        found.append(run(own_model, first.sequences, noise, past_key_values=first.past_key_values, count=8).sequences)
    assert torch.equal(*found)


def test_logits_are_told_as_the_model_said_them(model):
    ids = torch.randint(0, 250, (1, 6), generator=torch.Generator().manual_seed(0))
    options = {"count": 6, "output_logits": True, "suppress_tokens": [3, 4]}
    method = loopcd.Greedy(draft=loopcd.SelfDraft(1, 3, fallback=False))
    plain, drafted = (torch.stack(run(model, ids, each, **options).logits) for each in (loopcd.Greedy(), method))
    assert drafted.isfinite().all() and torch.allclose(plain, drafted, atol=1e-4)


def of_its_own(ids, scores):
    """A processor that wants something else of every row."""
    return scores + torch.eye(scores.shape[1])[10 : 10 + len(scores)] * 9


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_allowed_tokens_fn": lambda row, _: [10 + row, 20 + row]},
        {"encoder_no_repeat_ngram_size": 2},
        {"logits_processor": [of_its_own]},
    ],
)
def test_processors_are_told_which_row_a_text_is(own_model, options):
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(0))
    plain, drafted = (
        run(own_model, ids, loopcd.LoopCD(1, 0.3, draft=draft), **options).sequences
        for draft in (None, loopcd.SelfDraft(own_model.num_loops - 1, 3, fallback=False))
    )
    assert torch.equal(plain, drafted)


class Collected(BaseStreamer):
    def put(self, value: Any) -> None:
        pass

    def end(self) -> None:
        pass


def test_rows_that_do_not_keep_step_cannot_be_streamed(own_model):
    ids, method = torch.randint(0, 250, (2, 6)), loopcd.Greedy(draft=loopcd.SelfDraft(1, 3, fallback=False))
    run(own_model, ids[:1], method, streamer=Collected())
    with pytest.raises(ValueError, match="a streamer with a draft: for one row at a time"):
        run(own_model, ids, method, streamer=Collected())


def test_a_watermark_by_each_row_s_own_text(own_model):
    """It keeps the texts itself, row by row as it is called."""
    watermark = SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123, 340], ngram_len=3)
    ids = torch.randint(0, 250, (2, 6), generator=torch.Generator().manual_seed(0))
    made = []
    for draft in (None, loopcd.SelfDraft(1, 3, fallback=False)):
        torch.manual_seed(0)
        method = loopcd.Greedy(draft=draft)
        made.append(run(own_model, ids[:1], method, do_sample=True, watermarking_config=watermark).sequences)
    assert torch.equal(*made)
    with pytest.raises(ValueError, match="with a draft: its rows have to keep step"):
        run(own_model, ids, method, do_sample=True, watermarking_config=watermark)


@pytest.mark.parametrize("options", [{"guidance_scale": 1.5}, {"encoder_repetition_penalty": 1.5}])
def test_processors_whose_rows_keep_step_are_refused(own_model, options):
    ids = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="with a draft: its rows have to keep step"):
        run(own_model, ids, loopcd.Greedy(draft=loopcd.SelfDraft(1, 3)), **options)
