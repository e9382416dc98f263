"""Rows that have ended leave a batch: the others' tokens stay as they are, and a cache that was given gets all rows back."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

import loopcd
from decoding.runs import sharp
from loopcd.decoding.draft import RoundPace
from loopcd.decoding.loop import Job, Sampling, collect
from loopcd.decoding.narrowing import closed_up
from loopcd.decoding.rounds import Rounds
from tools import MAKERS

ROWS, PROMPT, LONGEST = 4, 6, 30


@pytest.fixture(scope="module", params=["huginn", "ouro"])
def model(request):
    return sharp(MAKERS[request.param]())


def job(model, ends=(), padded=True, cache=None):
    ids = torch.randint(0, 250, (ROWS, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, :2] = not padded
    stopping = StoppingCriteriaList([MaxLengthCriteria(LONGEST)])
    if ends:
        stopping.append(EosTokenCriteria(list(ends)))
    return Job(model, ids, mask if padded else None, stopping, Sampling(), pad_token_id=0, cache=cache)


def texts(rows):
    return [tokens[going].tolist() for tokens, going in zip(rows.tokens, rows.going, strict=True)]


def ends_of(model, padded=True):
    """Tokens by which two rows end early."""
    plain = texts(collect(loopcd.Greedy().steps(job(model, padded=padded)), 0))
    return [plain[0][4], plain[2][7]]


def drafting(method: Any = loopcd.Greedy, **more: Any) -> Any:
    return method(**more, draft=loopcd.SelfDraft(2, 4, fallback=False, wave=False))


@pytest.mark.parametrize("given", [True, False])
def test_the_others_go_on_alone_and_the_cache_gets_all_rows_back(model, given, advances):
    ends, seen = ends_of(model), advances(model)
    plain = collect(loopcd.LoopCD(1, 0.3).steps(job(model, ends, cache=model.new_cache())), 0)
    assert set(seen) == {ROWS}  # all rows are wanted in the cache
    cache = model.new_cache() if given else None
    drafted = collect(drafting(loopcd.LoopCD, amateur_loop=1, strength=0.3).steps(job(model, ends, cache=cache)), 0)
    for name in ("tokens", "going", "loops", "contested", "touched"):
        assert torch.equal(getattr(drafted, name), getattr(plain, name)), name
    assert min(seen) < ROWS and len(set(map(len, texts(plain)))) > 1
    if cache is not None:
        _holds_the_texts(model, cache, job(model), plain)


def _holds_the_texts(model, cache, read, rows):
    assert cache.batch == ROWS and cache.lengths is None
    ids = torch.cat([read.input_ids, rows.tokens], dim=1)[:, : cache.length]
    fresh, more = model.new_cache(), ids.shape[1] - PROMPT
    mask = torch.cat([read.attention_mask, torch.ones(ROWS, more, dtype=torch.bool)], dim=1)
    with torch.no_grad():
        model(ids, attention_mask=mask, past_key_values=fresh)
    assert torch.equal(cache.valid, fresh.valid)
    for own, other in zip(cache.layers, fresh.layers, strict=True):
        for kind in ("keys", "values"):
            held, read_again = (getattr(each, kind).transpose(1, 2)[mask] for each in (own, other))
            torch.testing.assert_close(held, read_again, atol=1e-4, rtol=1e-3)


METHODS = {
    "greedy": loopcd.Greedy(),
    "exit": loopcd.Greedy(exit=loopcd.EarlyExit(0.9, min_loops=1)),
    "exit-skip": loopcd.Greedy(exit=loopcd.EarlyExit(0.9, min_loops=1, exited="skip")),
    "loopcd": loopcd.LoopCD(1, 0.3),
    "loopcd-exit": loopcd.LoopCD(1, 0.3, exit=loopcd.EarlyExit(0.9)),
    "own-coda": loopcd.LoopCD(1, 0.3, 0.01, coda="own"),
    "own-coda-drafted": loopcd.LoopCD(1, 0.3, 0.01, coda="own", draft=loopcd.SelfDraft(2, 4, fallback=False, wave=False)),
    "auto": loopcd.LoopCD("auto", 0.3),
    "guidance": loopcd.LoopGuidance(1, 1.0),
    "noise": loopcd.NoiseCD(0.5, 0.3),
}


@pytest.mark.parametrize(("name", "drawn"), [*((name, False) for name in METHODS), ("greedy", True), ("loopcd-exit", True)])
def test_what_a_plain_batch_goes_on_without_changes_nothing(model, name, drawn, advances):
    method = METHODS[name]

    def sampling():
        if not drawn:
            return Sampling()
        warm = LogitsProcessorList([TemperatureLogitsWarper(0.7)])
        return Sampling(True, warm, [torch.Generator().manual_seed(row) for row in range(ROWS)])

    def made(ends=(), **more):
        return collect(method.steps(replace(job(model, ends), **{"sampling": sampling(), **more})), 0)

    first = texts(made())
    ends = [first[0][4], first[2][7]]
    seen = advances(model)
    narrowed = made(ends)
    assert min(seen) < ROWS and len(set(map(len, texts(narrowed)))) > 1
    whole = made(ends, cache=model.new_cache("last" if method.exit is None else method.exit.exited))
    for each in ("tokens", "going", "loops", "contested", "touched"):
        assert torch.equal(getattr(narrowed, each), getattr(whole, each)), each
    alone = [texts(made(ends, **_alone(job(model), sampling(), row)))[0] for row in range(ROWS)]
    assert texts(narrowed) == alone


def _alone(read, sampling, row):
    """One row of a job, with its padding."""
    own = sampling if sampling.generators is None else replace(sampling, generators=[sampling.generators[row]])
    at = slice(row, row + 1)
    return {"input_ids": read.input_ids[at], "attention_mask": read.attention_mask[at], "sampling": own}


@pytest.mark.parametrize("staying", [[0, 1, 2], [1, 2, 3], [0, 3], [3], [0, 1, 2, 3], [2, 3]])
@torch.no_grad()
def test_the_last_rows_take_the_places_of_those_that_leave(model, staying):
    cache = model.new_cache()
    model(job(model).input_ids, past_key_values=cache)
    order = closed_up(staying)
    held = [(slot.keys.clone(), slot.values.clone()) for slot in cache.layers]
    assert sorted(order) == staying and all(row == at or row >= len(order) for at, row in enumerate(order))
    cache.batch_select_indices(torch.tensor(order))
    for slot, (keys, values) in zip(cache.layers, held, strict=True):
        assert torch.equal(slot.keys, keys[order]) and torch.equal(slot.values, values[order])
    fresh = model.new_cache()
    model(job(model).input_ids[order], past_key_values=fresh)
    next_ids = torch.tensor([[7]] * len(order))
    torch.testing.assert_close(model(next_ids, past_key_values=cache).logits, model(next_ids, past_key_values=fresh).logits)


@pytest.mark.parametrize("wanted", ["scores", "logits", "global draws", "bans"])
def test_rows_stay_where_somebody_would_miss_them(model, wanted, advances):
    ends, seen = ends_of(model), advances(model)
    bans = LogitsProcessorList([SuppressTokensLogitsProcessor([3])])
    sampling = {
        "scores": Sampling(keep_scores=True),
        "logits": Sampling(keep_logits=True),
        "global draws": Sampling(draw=True),
        "bans": Sampling(processors=bans),
    }
    collect(loopcd.Greedy().steps(replace(job(model, ends), sampling=sampling[wanted])), 0)
    assert set(seen) == {ROWS}


def test_a_text_that_nobody_reads_to_its_end_leaves_all_rows_in_the_cache(model):
    cache = model.new_cache()
    steps = drafting().steps(job(model, ends_of(model), cache=cache))
    while cache.batch in (0, ROWS):
        next(steps)
    steps.close()
    assert cache.batch == ROWS and all(len(slot.keys) == ROWS for slot in cache.layers)


def test_a_text_s_end_is_no_refused_draft(model, monkeypatch):
    ends, seen = ends_of(model, padded=False), []
    whole = job(model, padded=False)
    told = torch.cat([whole.input_ids, collect(loopcd.Greedy().steps(whole), 0).tokens], dim=1)
    told = torch.cat([told, told[:, -1:].expand(-1, 8)], dim=1)  # what is drafted beyond the end does not matter

    def guess(rounds, state):
        span, rows = state.tokens.span, rounds.narrowing.rows
        columns = torch.full((len(rows),), span.stop - 1) if span.columns is None else span.columns[:, -1]
        return told[rows, columns + 1]

    monkeypatch.setattr(Rounds, "guess", guess)
    monkeypatch.setattr(RoundPace, "next", lambda pace: pace.length)
    monkeypatch.setattr(RoundPace, "saw", lambda pace, made, drafted: seen.append(made / pace.length))
    method = loopcd.Greedy(draft=loopcd.SelfDraft(2, 2, wave=False))
    rows = collect(method.steps(job(model, ends, padded=False)), 0)
    assert any(len(text) % 2 == 0 for text in texts(rows))  # it ended inside a round
    assert seen and set(seen) == {1.0}


def test_the_start_states_of_two_rows_stay_with_their_rows():
    """The row that goes on starts its tokens from its own draws, also where it is the only one left of two."""
    model = MAKERS["huginn"]()
    rows = replace(job(model), init_seed=[5, 6])
    rows = replace(rows, input_ids=rows.input_ids[[0, 2]], attention_mask=None)
    plain = texts(collect(loopcd.Greedy().steps(replace(rows, pad_token_id=None)), 0))  # without a pad nobody leaves
    for row in range(2):
        end = next(token for token in plain[row] if token not in plain[1 - row])
        ended = replace(rows, stopping=StoppingCriteriaList([MaxLengthCriteria(LONGEST), EosTokenCriteria([end])]))
        made = texts(collect(loopcd.Greedy().steps(ended), 0))
        assert made[1 - row] == plain[1 - row] and len(made[row]) < len(plain[row])
        assert texts(collect(drafting().steps(ended), 0)) == made
