"""The cache: rows reordered, repeated, selected and cropped, tokens that left the loop early, and how storage grows."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Cache

from loopcd.models import LoopCache, LoopedModel, cache_bytes, loop_logits
from loopcd.models.layers import causal_mask
from loopcd.models.places import PlaceCache, Places, Together, unseated
from loopcd.models.slots import BLOCK, GROWTH, Span
from tools import LATER, MAKERS, assert_close, attending, left_padded, logits_of, random_ids, tiny_hrm

FAMILIES = {**MAKERS, **LATER}
few = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


def filled(model: LoopedModel, *rows: torch.Tensor, **options: Any) -> LoopCache:
    """A cache that has seen these rows [time_b]."""
    cache = LoopCache(**options)
    ids, mask = left_padded(rows)
    logits_of(model, ids, cache, attention_mask=mask)
    return cache


def texts(*lengths: int) -> list[torch.Tensor]:
    return [random_ids(1, length, seed=100 + index)[0] for index, length in enumerate(lengths)]


def alone(model: LoopedModel, row: torch.Tensor, last: int) -> torch.Tensor:
    """The logits [last, vocab] at the end of a row that never met a cache."""
    return logits_of(model, row[None])[0, -last:]


# Rows


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
    ],
    ids=["reorder", "repeat", "select", "select by truth"],
)
def test_rows_follow_the_change(model: LoopedModel, change: Any, wanted: list[int]) -> None:
    rows, new = texts(9, 4, 6), random_ids(6, 3, seed=7)
    cache = filled(model, *rows)
    change(cache)
    mask = torch.ones(len(wanted), cache.get_seq_length() + 3, dtype=torch.long)
    found = logits_of(model, new[: len(wanted)], cache, attention_mask=mask)
    for row, index in enumerate(wanted):
        assert_close(found[row], alone(model, torch.cat([rows[index], new[row]]), last=3))


def test_another_number_of_rows_is_refused(model: LoopedModel) -> None:
    cache = filled(model, *texts(4, 4))
    with pytest.raises(ValueError, match="a pass of 3 rows on a cache of 2 rows"):
        logits_of(model, random_ids(3, 1), cache)


# Cropping


@few
@given(kept=st.integers(1, 8), cropped=st.integers(1, 40), new=st.integers(1, 4))
def test_crop_then_continue_equals_never_having_seen_it(model: LoopedModel, kept: int, cropped: int, new: int) -> None:
    rows = texts(kept + cropped, kept + cropped)
    for amount in (-cropped, kept):  # how many to drop, or (older transformers) how many to keep
        cache = filled(model, *rows)
        cache.crop(amount)
        assert cache.get_seq_length() == kept
        after = random_ids(2, new, seed=5)
        found = logits_of(model, after, cache)
        for row in range(2):
            assert_close(found[row], alone(model, torch.cat([rows[row][:kept], after[row]]), last=new))


def test_cropping_nothing_and_too_much(model: LoopedModel) -> None:
    cache = filled(model, *texts(6))
    cache.crop(0)
    assert cache.get_seq_length() == 6
    cache.crop(99)
    assert cache.get_seq_length() == 6
    cache.crop(-99)
    assert cache.get_seq_length() == 0


def test_reset_starts_again(model: LoopedModel) -> None:
    cache = filled(model, *texts(6, 3), exited="skip", limit=50)
    cache.reset()
    assert (cache.get_seq_length(), cache.nbytes, cache.exited, cache.limit) == (0, 0, "skip", 50)
    (row,) = texts(5)
    assert_close(logits_of(model, row[None], cache)[0], alone(model, row, last=5))


def test_a_text_at_a_place_keeps_it_when_its_cache_is_reset(model: LoopedModel) -> None:
    cache = PlaceCache(Places(model, 3, model.num_loops), 1)
    row = texts(7)[0]
    logits_of(model, texts(9)[0][None], cache)
    cache.reset()
    assert_close(logits_of(model, row[None], cache)[0, -1:], alone(model, row, 1))
    assert (cache.place, cache.length) == (1, 7)


@few
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    draft=st.integers(1, 4),
    rounds=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=3),
)
def test_rows_of_different_lengths_equal_each_row_alone(
    model: LoopedModel, lengths: list[int], draft: int, rounds: list[list[int]]
) -> None:
    """As drafting does it: every round appends `draft` tokens to each row and keeps a different number of them."""
    rows = texts(*lengths)
    cache = filled(model, *rows)
    padding = torch.tensor([cache.get_seq_length() - length for length in lengths])
    for number, accepted in enumerate(rounds):
        new = random_ids(len(rows), draft, seed=number)
        found = logits_of(model, new, cache)
        kept = [min(accepted[row], draft) for row in range(len(rows))]
        for row in range(len(rows)):
            assert_close(found[row], alone(model, torch.cat([rows[row], new[row]]), last=draft))
            rows[row] = torch.cat([rows[row], new[row, : kept[row]]])
        cache.crop_rows(padding + torch.tensor([len(row) for row in rows]))


def test_rows_of_different_lengths_can_be_selected(own_model: LoopedModel) -> None:
    rows, new = texts(8, 8, 8), random_ids(2, 2, seed=3)
    cache = filled(own_model, *rows)
    cache.crop_rows(torch.tensor([5, 8, 7]))
    cache.batch_select_indices(torch.tensor([2, 0]))
    found = logits_of(own_model, new, cache)
    assert_close(found[0], alone(own_model, torch.cat([rows[2][:7], new[0]]), last=2))
    assert_close(found[1], alone(own_model, torch.cat([rows[0][:5], new[1]]), last=2))


def test_flash_attention_cannot_serve_rows_of_different_lengths() -> None:
    span = Span(2, 3, 5, columns=torch.tensor([[3], [4]]))
    with pytest.raises(ValueError, match="'flash_attention_2' cannot serve rows of different lengths: use 'sdpa'"):
        causal_mask(span, torch.device("cpu"), None, "flash_attention_2")


# Tokens that left the loop early


@torch.no_grad()
def with_exits(
    model: LoopedModel, cache: LoopCache, ids: torch.Tensor, mask: torch.Tensor | None, depths: list[int]
) -> torch.Tensor:
    """One pass in which row b leaves after `depths[b]` loops: the last token's logits [rows, vocab]."""
    rows, said = torch.arange(len(ids)), torch.zeros(len(ids), model.config.vocab_size)
    state = model.begin(ids, cache, attention_mask=mask)
    for loop in range(1, model.num_loops + 1):
        state = model.advance(state)
        leaving = torch.tensor([depths[row] == loop for row in rows])
        if not leaving.any():
            continue
        gone = state.keep(leaving.nonzero().squeeze(1))
        said[rows[leaving]] = model.head(model.readout(gone)[:, -1])
        if loop < model.num_loops:
            cache.leave(gone.tokens.span, loop, ids.device)
        state, rows = state.keep((~leaving).nonzero().squeeze(1)), rows[~leaving]
        if len(rows) == 0:
            break
    return said


exits = st.lists(st.lists(st.integers(1, 3), min_size=3, max_size=3), min_size=2, max_size=5)


@pytest.mark.parametrize("exited", ["last", "skip"])
@few
@given(depths=exits, shorter=st.integers(0, 3))
def test_rows_that_leave_at_different_loops_equal_each_row_alone(
    model: LoopedModel, exited: Any, depths: list[list[int]], shorter: int
) -> None:
    """The prompt's pass leaves early too, in rows of which one may be padded; then token by token."""
    rows = texts(6, 6 - shorter, 6)
    new = random_ids(3, len(depths), seed=1)
    ids, mask = left_padded(rows)
    batch, singles = LoopCache(exited), [LoopCache(exited) for _ in rows]
    for step, leave in enumerate(depths):
        tokens = ids if step == 0 else new[:, step - 1 : step]
        found = with_exits(model, batch, tokens, mask if step == 0 else None, leave)
        for row, cache in enumerate(singles):
            piece = rows[row][None] if step == 0 else tokens[row : row + 1]
            assert_close(found[row], with_exits(model, cache, piece, None, [leave[row]])[0])


@pytest.mark.parametrize("family", MAKERS)
def test_skipped_tokens_are_attended_alike_by_sdpa_and_eager(family: str) -> None:
    said = {}
    for implementation in ("sdpa", "eager"):
        model, cache = attending(MAKERS[family](), implementation), LoopCache("skip")
        first = with_exits(model, cache, random_ids(2, 5), None, [1, 3])
        said[implementation] = torch.stack([first, with_exits(model, cache, random_ids(2, 1), None, [3, 2])])
    assert_close(said["sdpa"], said["eager"])


@torch.no_grad()
def test_last_and_skip_see_an_early_token_differently(model: LoopedModel) -> None:
    (row,) = texts(6)
    said = {}
    for exited in ("last", "skip"):
        cache = LoopCache(exited)
        with_exits(model, cache, row[None, :5], None, [1])
        said[exited] = with_exits(model, cache, row[None, 5:], None, [model.num_loops])
    assert not torch.allclose(said["last"], said["skip"], atol=1e-2)
    # a token that nobody before it is visible to is, at the later loops, alone
    assert not torch.allclose(said["skip"][0], alone(model, row, last=1)[0], atol=1e-2)


@pytest.mark.parametrize("exited", ["last", "skip"])
@torch.no_grad()
def test_cropped_early_tokens_leave_nothing_behind(model: LoopedModel, exited: Any) -> None:
    """A new token in the column of a cropped one is seen at every loop that it ran itself."""
    prompt, draft, after = random_ids(2, 4), random_ids(2, 3, seed=1), random_ids(2, 2, seed=2)
    full = model.num_loops
    cache = LoopCache(exited)
    with_exits(model, cache, prompt, None, [full, full])
    with_exits(model, cache, draft, None, [1, 2])
    cache.crop_rows(torch.tensor([4, 7]))
    found = [with_exits(model, cache, after[:, i : i + 1], None, [full, full]) for i in range(2)]
    assert_close(torch.stack([each[0] for each in found]), alone(model, torch.cat([prompt[0], after[0]]), last=2))


@pytest.mark.parametrize("exited", ["last", "skip"])
@torch.no_grad()
def test_rows_with_early_tokens_can_be_selected(model: LoopedModel, exited: Any) -> None:
    rows, new, full = texts(5, 5, 5), random_ids(3, 2, seed=1), model.num_loops
    batch, single = LoopCache(exited), LoopCache(exited)
    with_exits(model, batch, torch.stack(rows), None, [1, full, 2])
    with_exits(model, batch, new[:, :1], None, [2, 1, 1])
    batch.batch_select_indices(torch.tensor([2, 0]))
    for ids, depth in ((rows[2][None], 2), (new[2:, :1], 1)):
        with_exits(model, single, ids, None, [depth])
    found = with_exits(model, batch, new[:2, 1:], None, [full, full])
    assert_close(found[0], with_exits(model, single, new[:1, 1:], None, [full])[0])


@torch.no_grad()
def test_a_loop_that_no_token_entered_takes_no_storage(own_model: LoopedModel) -> None:
    cache = LoopCache(limit=8)
    with_exits(own_model, cache, random_ids(1, 5), None, [1])
    with_exits(own_model, cache, random_ids(1, 1), None, [1])
    assert cache.nbytes < cache_bytes(own_model, 8)
    logits_of(own_model, random_ids(1, 1), cache)  # a pass without exits goes on from it
    assert cache.nbytes == cache_bytes(own_model, 8)


def test_the_choice_is_checked() -> None:
    with pytest.raises(ValueError, match=r"exited='first'.*last.*skip"):
        LoopCache("first")  # pyright: ignore[reportArgumentType]


# Fewer loops and more


@pytest.mark.parametrize("family", FAMILIES)
def test_more_loops_than_the_columns_ran_are_refused(family: str) -> None:
    """By a pass that leaves no trace; fewer are no trouble, nor are more once the columns that ran fewer are gone."""
    model, cache = FAMILIES[family](), LoopCache()
    ids, full = random_ids(1, 9), model.num_loops
    said = [logits_of(model, ids[:, :4], cache, num_loops=1)]
    with pytest.raises(ValueError, match="ran num_loops=1, which cannot be seen at loop 2: use num_loops=1, or a new cache"):
        logits_of(model, ids[:, 4:], cache)
    said += [logits_of(model, part, cache, num_loops=1) for part in ids[:, 4:].split([4, 1], dim=1)]
    assert_close(torch.cat(said, dim=1), logits_of(model, ids, num_loops=1))
    cache.crop(-99)
    logits_of(model, ids[:, :6], cache)
    logits_of(model, ids[:, 6:], cache, num_loops=full - 1)
    with pytest.raises(ValueError, match=f"ran num_loops={full - 1}, which"):
        logits_of(model, ids, cache)
    cache.crop(6)
    assert_close(logits_of(model, ids[:, 6:], cache), logits_of(model, ids)[:, 6:])


def test_more_loops_in_rows_of_different_lengths_are_refused(model: LoopedModel) -> None:
    cache = filled(model, *texts(8, 8))
    cache.crop_rows(torch.tensor([5, 8]))
    logits_of(model, random_ids(2, 2), cache)
    logits_of(model, random_ids(2, 1), cache, num_loops=2)
    with pytest.raises(ValueError, match="ran num_loops=2, which"):
        logits_of(model, random_ids(2, 1), cache)


@pytest.mark.parametrize("exited", ["last", "skip"])
def test_more_loops_are_refused_where_only_later_tokens_left_early(model: LoopedModel, exited: Any) -> None:
    cache, full = LoopCache(exited), model.num_loops
    logits_of(model, random_ids(2, 5), cache, num_loops=2)
    with_exits(model, cache, random_ids(2, 1), None, [1, 2])
    with pytest.raises(ValueError, match="ran num_loops=2, which"):
        with_exits(model, cache, random_ids(2, 1), None, [full, full])


# Modes


MODES = ([False] * 8, [True, False] * 4, [False, True] * 4)  # whether each pass is made under inference mode


@pytest.mark.parametrize("exited", ["last", "skip"])
def test_a_cache_serves_in_and_out_of_inference_mode(model: LoopedModel, exited: Any) -> None:
    """Whichever made it: rows leave, are selected in either way, and go on past the room that there was."""
    full, said = model.num_loops, []
    for modes in MODES:
        cache, mode, passes = LoopCache(exited), iter(modes), []
        for rows, index in ((3, [2, 0, 1]), (3, [0, 2, 1, 1]), (4, [0, 3, 2]), (3, [0, 2])):
            with torch.inference_mode(next(mode)):
                passes.append(with_exits(model, cache, random_ids(rows, 5), None, [1, full, 2, 1][:rows]))
            with torch.inference_mode(next(mode)):
                passes.append(with_exits(model, cache, random_ids(rows, 30), None, [full] * rows))
                cache.batch_select_indices(torch.tensor(index))
        passes.append(model(random_ids(2, 1), past_key_values=cache).logits[:, -1].detach())  # with gradients
        said.append(torch.cat(passes))
    for each in said[1:]:
        assert_close(each, said[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_that_left_its_place_serves_training(own_model: LoopedModel, mode: Any) -> None:
    (row,) = texts(9)
    cache = PlaceCache(Places(own_model, 2, own_model.num_loops), 1)
    with mode():
        logits_of(own_model, row[None, :5], cache)
        unseated(cache)
    assert_close(own_model(row[None, 5:], past_key_values=cache).logits[0].detach(), alone(own_model, row, 4))


def test_inference_mode_may_end_before_a_token_leaves() -> None:
    cache = LoopCache("skip")
    with torch.inference_mode():
        cache.leave(cache.open(1, 2), 1, torch.device("cpu"))
        span = cache.open(1, 1)
    cache.leave(span, 2, torch.device("cpu"))
    seen = cache.seen_at(2)
    assert seen is not None and seen.tolist() == [[False, False, True]]


@pytest.mark.parametrize("modes", MODES[1:])
def test_places_and_early_readouts_serve_in_and_out_of_inference_mode(huginn: LoopedModel, modes: list[bool]) -> None:
    (row,) = texts(40)
    place, cache = PlaceCache(Places(huginn, 3, huginn.num_loops), 1), LoopCache()
    wanted = loop_logits(huginn, row[None], loops=[1, huginn.num_loops])[0]
    for mode, at in zip(modes, (slice(0, 7), slice(7, 39), slice(39, 40)), strict=False):
        with torch.inference_mode(mode), torch.no_grad():
            last = logits_of(huginn, row[None, at], place)[0, -1]
            parked = huginn.park(huginn.advance(huginn.begin(row[None, at].expand(cache.batch or 1, -1), cache)), coda="own")
            early = huginn.head(huginn.read_parked(parked))[:, -1]
            cache.batch_repeat_interleave(2)
        assert_close(last, wanted[1, at.stop - 1])
        assert_close(early, wanted[:1, at.stop - 1].expand_as(early))


# Storage


@few
@given(prompt=st.integers(1, 90), steps=st.integers(0, 5), rows=st.integers(1, 3))
def test_storage_is_what_was_told_within_the_slack(model: LoopedModel, prompt: int, steps: int, rows: int) -> None:
    cache = filled(model, *random_ids(rows, prompt))
    for _ in range(steps):
        logits_of(model, random_ids(rows, 1), cache)
    told = cache_bytes(model, prompt + steps, batch=rows)
    most = cache_bytes(model, int((prompt + steps) * GROWTH) + BLOCK, batch=rows)
    assert told <= cache.nbytes <= most
    assert len(cache.layers) == model.slot_count()


def test_storage_grows_geometrically(own_model: LoopedModel) -> None:
    cache, sizes = LoopCache(), []
    for _ in range(200):
        logits_of(own_model, random_ids(1, 1), cache, num_loops=1)
        sizes.append(cache.nbytes)
    changes = [index for index in range(1, 200) if sizes[index] != sizes[index - 1]]
    assert 1 <= len(changes) <= 6
    assert all(sizes[index] >= 1.3 * sizes[index - 1] for index in changes)


@pytest.mark.parametrize("limit", [40, 41, 64])
def test_growth_stops_at_the_limit(own_model: LoopedModel, limit: int) -> None:
    cache = filled(own_model, *random_ids(1, 33), limit=limit)
    for _ in range(limit - 33):
        logits_of(own_model, random_ids(1, 1), cache)
    assert cache.get_seq_length() == limit
    assert cache.nbytes == cache_bytes(own_model, limit)
    logits_of(own_model, random_ids(1, 1), cache)  # the limit bounds what is reserved, not what may be asked
    assert cache.get_seq_length() == limit + 1


def test_fewer_loops_take_fewer_slots(model: LoopedModel) -> None:
    cache = LoopCache(limit=8)
    logits_of(model, random_ids(1, 8), cache, num_loops=2)
    assert cache.nbytes == cache_bytes(model, 8, num_loops=2) < cache_bytes(model, 8)


def test_it_is_what_transformers_expects_of_a_cache(model: LoopedModel) -> None:
    cache = LoopCache()
    assert isinstance(cache, Cache)
    assert not cache.is_initialized and cache.get_seq_length() == 0
    logits_of(model, random_ids(2, 5), cache)
    assert cache.is_initialized and cache.get_seq_length() == 5
    assert cache.get_mask_sizes(3, 0) == (8, 0)
    assert len(cache) == model.slot_count()
    assert not cache.is_compileable and not any(cache.is_sliding)
    layer = cache.slot(model.slot_count() - 1)
    assert layer is cache.layers[-1]
    assert layer.keys is not None and layer.keys.shape[::2] == (2, 5)
    assert layer.get_seq_length() == 5 and layer.get_max_length() == -1


def test_writing_without_a_pass_is_refused() -> None:
    keys = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ValueError, match=r"no open span: call LoopCache.open\(batch, time\)"):
        LoopCache().update(keys, keys, 0)


@pytest.mark.parametrize("at", [[1], [0, 2], [0, 1, 3]], ids=str)
def test_layers_that_attend_by_themselves_are_given_each_texts_own_keys(at: list[int]) -> None:
    """Also of places that are no single view of the storage."""
    model = tiny_hrm()
    places, written = Places(model, 4, model.num_loops), torch.randn(2, 2, len(at), 2, 1, 16)  # [column, keys or values, …]
    found = [
        Together(places, at, [column] * len(at), [1] * len(at), "cpu").update(new[0], new[1], min(places.looped))
        for column, new in enumerate(written)
    ]
    for kept, new in zip(found[-1], written.transpose(0, 1), strict=True):
        assert torch.equal(kept, torch.cat(list(new), dim=2))
