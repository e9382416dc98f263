"""Early readouts, and passes that are put together from several: what drafting and contrasting stand on."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopcd.models import LoopCache, LoopedModel, LoopState
from tools import assert_close, left_padded, logits_of, random_ids

few = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


def advanced(model: LoopedModel, state: LoopState, loops: int) -> LoopState:
    for _ in range(loops):
        state = model.advance(state)
    return state


# Early readouts


@pytest.mark.parametrize("coda", ["own", "shared"])
@torch.no_grad()
def test_reading_early_does_not_change_what_follows(model: LoopedModel, coda: Any) -> None:
    """Also not where the early readout is read after the final one, at some tokens only, or never."""
    ids, cache = random_ids(2, 10), LoopCache()
    wanted = logits_of(model, ids)
    for position, token in enumerate(ids.split(1, dim=1)):
        state = model.advance(model.begin(token, cache))
        parked = model.park(state, coda)
        if position % 4 == 1:
            model.read_parked(parked)
        for _ in range(model.num_loops - 1):
            state = model.advance(state)
        final = model.head(model.readout(state))
        assert_close(final[:, 0], wanted[:, position])
        if position % 4 == 2:
            model.read_parked(parked)


@few
@given(chunks=st.lists(st.integers(1, 4), min_size=1, max_size=5), loop=st.integers(1, 3), often=st.integers(1, 3))
@torch.no_grad()
def test_an_own_early_readout_is_the_model_stopped_there(model: LoopedModel, chunks: list[int], loop: int, often: int) -> None:
    """Also when it is put off: what was parked meanwhile is caught up with, in padded batches too."""
    rows = [random_ids(1, sum(chunks), seed=seed)[0] for seed in range(2)]
    rows[0] = rows[0][: max(1, len(rows[0]) // 2)]
    ids, mask = left_padded(rows)
    stopped = logits_of(model, ids, attention_mask=mask, num_loops=loop)
    cache, stop = LoopCache(), 0
    for index, length in enumerate(chunks):
        start, stop = stop, stop + length
        state = model.begin(ids[:, start:stop], cache, attention_mask=mask[:, :stop])
        for _ in range(loop):
            state = model.advance(state)
        parked = model.park(state, "own")
        for _ in range(model.num_loops - loop):
            state = model.advance(state)
        model.readout(state)
        if index % often == 0:
            found = model.head(model.read_parked(parked))[:, 0]
            real = mask[:, stop - 1].bool()
            assert_close(found[real], stopped[real, stop - 1])


@torch.no_grad()
def test_parked_readouts_follow_their_rows(model: LoopedModel) -> None:
    rows, new = random_ids(2, 7), random_ids(1, 1, seed=7)[0]
    cache = LoopCache()
    model.park(model.advance(model.begin(rows, cache)), "own")  # parked, not read
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    parked = model.park(model.advance(model.begin(new.expand(3, 1), cache)), "own")
    found = model.head(model.read_parked(parked))[:, 0]
    for row, index in enumerate([1, 1, 0]):
        assert_close(found[row], logits_of(model, torch.cat([rows[index], new])[None], num_loops=1)[0, -1])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_reading_only_the_last_token_leaves_the_same_behind(model: LoopedModel, attention: str) -> None:
    """Its readout is the same, and so is what the next pass sees, in padded rows too."""
    model.set_attn_implementation(attention)
    ids, mask = left_padded([random_ids(1, 9)[0], random_ids(1, 6, seed=1)[0]])
    wanted = logits_of(model, ids, attention_mask=mask)
    cache = LoopCache()
    for start, stop in ((0, 5), (5, 6), (6, 9)):
        state = model.begin(ids[:, start:stop], cache, attention_mask=mask[:, :stop])
        found = model.head(model.readout(advanced(model, state, model.num_loops), last=True))
        assert found.shape[:2] == (2, 1)
        assert_close(found[:, 0], wanted[:, stop - 1])


# Drafting: tokens go through the first loops one by one, and through the others together


@torch.no_grad()
def drafted(model: LoopedModel, cache: LoopCache, tokens: torch.Tensor, loop: int, coda: Any, at_once: bool) -> Any:
    """Early and final logits, each [rows, time, vocab]; early ones are read token by token unless `at_once`."""
    states, parked, early = [], [], []
    for token in tokens.split(1, dim=1):
        states.append(advanced(model, model.begin(token, cache), loop))
        parked.append(model.park(states[-1], coda))
        if not at_once:
            early.append(model.head(model.read_parked(parked[-1])))
    state = advanced(model, model.join(states), model.num_loops - loop)
    final = model.head(model.readout(state))
    if at_once:
        early.append(model.head(model.read_parked(model.join_parked(parked), count=tokens.shape[1])))
    return torch.cat(early, dim=1), final


rounds = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=4)


@few
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    kept=rounds,
    loop=st.integers(1, 2),
    at_once=st.booleans(),
    often=st.integers(1, 2),
)
@torch.no_grad()
def test_drafted_rows_equal_each_row_alone(
    model: LoopedModel, lengths: list[int], kept: list[list[int]], loop: int, at_once: bool, often: int
) -> None:
    """Three tokens a round, of which each row keeps a number of its own; the early readout is its own coda's."""
    rows = [random_ids(1, length, seed=40 + index)[0] for index, length in enumerate(lengths)]
    ids, mask = left_padded(rows)
    cache = LoopCache()
    model.park(advanced(model, model.begin(ids, cache, attention_mask=mask), loop), "own")
    cache.crop(-ids.shape[1])  # parked and cropped again: nothing of it may stay
    state = advanced(model, model.begin(ids, cache, attention_mask=mask), loop)
    model.park(state, "own")
    model.readout(advanced(model, state, model.num_loops - loop))
    for number, keep in enumerate(kept):
        new = random_ids(len(rows), 3, seed=number)
        early, final = drafted(model, cache, new, loop, "own", at_once)
        for row in range(len(rows)):
            text = torch.cat([rows[row], new[row]])
            assert_close(final[row], logits_of(model, text[None])[0, -3:])
            if number % often == 0:
                assert_close(early[row], logits_of(model, text[None], num_loops=loop)[0, -3:])
            rows[row] = text[: len(text) - 3 + keep[row]]
        cache.crop_rows(torch.tensor([ids.shape[1] - length for length in lengths]) + torch.tensor([*map(len, rows)]))


@pytest.mark.parametrize("at_once", [False, True])
@torch.no_grad()
def test_shared_readouts_of_drafted_rows_equal_each_row_alone(huginn: LoopedModel, at_once: bool) -> None:
    """Each row against the same calls with a cache of its own; the past is seen by the final readouts' entries."""
    prompt, first, second = random_ids(2, 5), random_ids(2, 3, seed=1), random_ids(2, 3, seed=2)
    kept = torch.tensor([6, 8])

    def run(rows: slice) -> Any:
        cache = LoopCache()
        logits_of(huginn, prompt[rows], cache)
        drafted(huginn, cache, first[rows], 1, "shared", True)
        cache.crop_rows(kept[rows])
        return drafted(huginn, cache, second[rows], 1, "shared", at_once)

    together = run(slice(0, 2))
    for row in range(2):
        for found, wanted in zip(together, run(slice(row, row + 1)), strict=True):
            assert_close(found[row], wanted[0])


def test_a_readout_that_missed_tokens_is_refused(huginn: LoopedModel) -> None:
    cache = LoopCache()
    logits_of(huginn, random_ids(1, 5), cache)  # nothing parked
    parked = huginn.park(huginn.advance(huginn.begin(random_ids(1, 1), cache)), "own")
    with pytest.raises(ValueError, match="early latents were not kept"):
        huginn.read_parked(parked)
