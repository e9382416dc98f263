"""`loopcd.Batch`: prompts from anywhere, texts as they end, each as it is alone."""

import weakref
from threading import Thread
from typing import Any

import pytest
import torch

import loopcd
from loopcd.decoding.batch import Handle
from loopcd.models import LoopedModel

METHOD = loopcd.LoopCD(1, 0.5, 0.05)


def alone(model: LoopedModel, prompt: Any, **options: Any) -> list[int]:
    return loopcd.generate(model, None, [prompt], METHOD, **options)[0].token_ids


def test_texts_come_as_they_end(own_model: LoopedModel) -> None:
    batch = loopcd.Batch(own_model, rows=2)
    handles = [batch.submit([5, 6, 7 + at], METHOD, max_new_tokens=length) for at, length in enumerate((12, 3, 2, 4))]
    came = list(batch)
    assert set(came) == set(handles) and came[-1] is handles[0] and len(batch) == 0
    for at, (handle, length) in enumerate(zip(handles, (12, 3, 2, 4), strict=True)):
        assert handle.result().token_ids == alone(own_model, [5, 6, 7 + at], max_new_tokens=length)
        assert handle.ended in ("length", "stop")


def test_prompts_from_several_threads(huginn: LoopedModel) -> None:
    batch, made = loopcd.Batch(huginn, rows=3), {}

    def ask(number: int) -> None:
        handle = batch.submit([9, number], METHOD, max_new_tokens=5, temperature=1.0, number=number)
        made[number] = handle.result().token_ids

    threads = [Thread(target=ask, args=(number,)) for number in range(3, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    options = {"max_new_tokens": 5, "temperature": 1.0}
    assert made == {number: alone(huginn, [9, number], **options, numbers=[number]) for number in range(3, 9)}


def test_one_is_cancelled_in_the_middle(ouro: LoopedModel) -> None:
    batch = loopcd.Batch(ouro, rows=2)
    handles = [batch.submit([4, at], METHOD, max_new_tokens=6) for at in range(5, 9)]
    came: list[Handle] = []
    for handle in batch:
        came.append(handle)
        if len(came) == 1:
            assert handles[2].cancel() and not handle.cancel()
    assert set(came) == {handles[0], handles[1], handles[3]} and handles[2].ended == "cancelled"
    assert [each.result().token_ids for each in came] == [alone(ouro, list(each.prompt), max_new_tokens=6) for each in came]
    with pytest.raises(ValueError, match="cancelled"):
        handles[2].result()


def test_one_that_runs_out_of_context_says_so_and_disturbs_no_other(own_model: LoopedModel) -> None:
    batch = loopcd.Batch(own_model, rows=2)
    generator = torch.Generator().manual_seed(1)
    long = torch.randint(3, 200, (own_model.max_context - 4,), generator=generator).tolist()
    full, other = batch.submit(long, METHOD), batch.submit([5, 6], METHOD, max_new_tokens=8)
    list(batch)
    assert full.ended == "context" and len(full.token_ids) == 4 and full.result().finish_reason == "length"
    assert other.result().token_ids == alone(own_model, [5, 6], max_new_tokens=8)


def test_what_cannot_go_on_together_is_refused(huginn: LoopedModel) -> None:
    batch = loopcd.Batch(huginn)
    with pytest.raises(ValueError, match="undrafted"):
        batch.submit([3], loopcd.Greedy(draft=loopcd.SelfDraft()))
    with pytest.raises(ValueError, match="rows=0"):
        loopcd.Batch(huginn, rows=0)


@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
def test_a_pass_that_breaks_takes_down_what_was_in_it_and_no_more(
    own_model: LoopedModel, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    batch, advance, passes = loopcd.Batch(own_model, rows=2), own_model.advance, iter(range(100))

    def breaks_once(state: Any) -> Any:
        if next(passes) == 5:
            raise kind("no room")
        return advance(state)

    handles = [batch.submit([5, at], METHOD, max_new_tokens=4) for at in range(6, 9)]
    with monkeypatch.context() as patched:
        patched.setattr(own_model, "advance", breaks_once)
        with pytest.raises(KeyboardInterrupt if kind is KeyboardInterrupt else MemoryError):
            handles[0].result()
    assert set(batch) == set(handles) and [each.ended for each in handles[:2]] == ["failed", "failed"]
    with pytest.raises(RuntimeError if kind is KeyboardInterrupt else MemoryError):
        handles[1].result()
    later = batch.submit([5, 6], METHOD, max_new_tokens=4)
    assert handles[2].result().token_ids == alone(own_model, [5, 8], max_new_tokens=4)
    assert later.result().token_ids == alone(own_model, [5, 6], max_new_tokens=4)


def test_a_prompt_that_cannot_begin_fails_alone(own_model: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache has no room, or its first pass breaks, which it shares with another prompt."""
    batch, begin = loopcd.Batch(own_model, rows=4), own_model.begin
    going = batch.submit([5, 6], METHOD, max_new_tokens=12)
    for _ in range(2 * own_model.num_loops + 2):
        batch._work()

    def breaks(ids: Any, *args: Any, **options: Any) -> Any:
        if 77 in ids:
            raise ArithmeticError("77")
        return begin(ids, *args, **options)

    def no_room(model: Any, tokens: int, **sizes: Any) -> None:
        if tokens == 2 + 9:
            raise MemoryError(f"{tokens} tokens")

    monkeypatch.setattr(own_model, "begin", breaks)
    monkeypatch.setattr("loopcd.decoding.loop.check_memory", no_room)
    large, broken, other = (batch.submit([5, at], METHOD, max_new_tokens=most) for at, most in ((8, 9), (77, 3), (7, 3)))
    assert set(batch) == {going, large, broken, other}
    for handle, kind in ((large, MemoryError), (broken, ArithmeticError)):
        with pytest.raises(kind):
            handle.result()
        assert handle.ended == "failed"
    monkeypatch.undo()
    assert going.result().token_ids == alone(own_model, [5, 6], max_new_tokens=12)
    assert other.result().token_ids == alone(own_model, [5, 7], max_new_tokens=3)
    later = [batch.submit([9, at], METHOD, max_new_tokens=3) for at in range(4)]  # all places are free again
    assert [each.result().token_ids for each in later] == [alone(own_model, [9, at], max_new_tokens=3) for at in range(4)]


class Borrowed:
    """A tokenizer that breaks at the texts of some prompts, as fast ones do that two threads use at once."""

    pad_token_id, eos_token_id = 0, None

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def decode(self, ids: Any, **_: Any) -> str:
        if len(ids) == 3:
            raise RuntimeError("Already borrowed")
        return "text"


@pytest.mark.parametrize("stop", [(), "!"], ids=["at the end", "at a stop string"])
def test_a_text_that_cannot_be_decoded_fails_alone(own_model: LoopedModel, stop: Any) -> None:
    batch = loopcd.Batch(own_model, Borrowed(), rows=3)
    lengths = (5, 3, 3, 2) if not stop else (2, 5, 9, 2)
    handles = [batch.submit([5, at], METHOD, max_new_tokens=most, stop=stop) for at, most in enumerate(lengths)]
    assert set(batch) == set(handles) and [each.ended for each in handles] == ["length", "failed", "failed", "length"]
    for at in (1, 2):
        with pytest.raises(RuntimeError, match="Already borrowed"):
            handles[at].result()
    for at in (0, 3):
        assert handles[at].result().token_ids == alone(own_model, [5, at], max_new_tokens=lengths[at])


@pytest.mark.parametrize(("prompt", "wrong"), [([10**6], 10**6), ([3, 259, 4], 259), ([5, -1], -1)])
def test_tokens_beyond_the_vocabulary_are_refused_at_once(ouro: LoopedModel, prompt: list[int], wrong: int) -> None:
    with pytest.raises(ValueError, match=f"prompt holds token id {wrong}: the vocabulary has ids 0 to 258"):
        loopcd.Batch(ouro).submit(prompt, METHOD)


def test_a_text_that_was_asked_for_is_kept_by_who_asked(huginn: LoopedModel) -> None:
    """A server asks for every result and never iterates: what nobody holds any more is freed."""
    batch = loopcd.Batch(huginn, rows=2)
    held, dropped = (batch.submit([5, at], METHOD, max_new_tokens=3) for at in (6, 7))
    unasked = weakref.ref(batch.submit([5, 8], METHOD, max_new_tokens=3))
    assert len(held.result().token_ids) == len(dropped.result().token_ids) == 3
    gone = weakref.ref(dropped)
    del dropped
    assert gone() is None
    assert list(batch) == [held, unasked()]
