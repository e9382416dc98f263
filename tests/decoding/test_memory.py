"""A batch is as large as memory allows, what that runs out for is made in halves, and nothing stays for longer than needed."""

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import loopcd
from loopcd.decoding import Method
from loopcd.decoding.generate import Request
from loopcd.decoding.ticks import Ticks
from loopcd.models import LoopCache, cache_bytes, memory
from loopcd.models.cache import Branch
from loopcd.models.places import Places
from loopcd.models.slots import Slot
from tools import random_ids, tiny_huginn, tiny_ouro

FIXED = loopcd.Greedy(draft=loopcd.SelfDraft(1, 2))  # whose rows keep step
PROMPTS = ["one", "and two", "or three", "four", "but not five"]


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every batch that is begun."""
    seen: list[int] = []
    job = Request.job

    def noted(self: Any, prompts: Any, numbers: Any) -> Any:
        seen.append(len(prompts))
        return job(self, prompts, numbers)

    monkeypatch.setattr(Request, "job", noted)
    return seen


def test_a_batch_is_as_large_as_memory_allows(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    model = tiny_ouro()
    wanted = loopcd.generate(model, tokenizer, PROMPTS, FIXED, max_new_tokens=6)
    room = int(2.5 * cache_bytes(model, max(map(len, PROMPTS)) + 6) / 0.9)
    monkeypatch.setattr(memory, "free_bytes", lambda device: room)
    assert loopcd.generate(model, tokenizer, PROMPTS, FIXED, max_new_tokens=6) == wanted
    assert sizes[0] == 5
    assert sum(sizes[1:]) == 5 and max(sizes[1:]) < 5 and sizes[-1] <= 2


def test_out_of_memory_halves_the_batch_once(
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sizes: list[int],
) -> None:
    model, rows, most = tiny_ouro(), loopcd.Greedy.rows, 3
    wanted = loopcd.generate(model, tokenizer, PROMPTS, FIXED, max_new_tokens=6)

    def limited(self: Any, job: Any, on_step: Any = None) -> Any:
        if len(job.input_ids) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows(self, job, on_step)

    monkeypatch.setattr(loopcd.Greedy, "rows", limited)
    with caplog.at_level(logging.WARNING, "loopcd"):
        assert loopcd.generate(model, tokenizer, PROMPTS, FIXED, max_new_tokens=6) == wanted
    assert "out of memory with 5 texts at once: going on with 3" in caplog.text
    assert loopcd.generate(model, tokenizer, PROMPTS, FIXED, max_new_tokens=6) == wanted
    assert sizes == [5, 5, 3, 2, 3, 2]  # the second call begins with what went well
    most = 1
    with pytest.raises(torch.OutOfMemoryError):
        loopcd.generate(model, tokenizer, PROMPTS, FIXED, max_new_tokens=6)


@pytest.mark.usefixtures("in_places")
def test_places_are_as_many_as_memory_allows(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    model, step, seen, most = tiny_ouro(), Ticks.step, [], 5

    def limited(self: Ticks) -> Any:
        seen.append(self.places.rows)
        if self.places.rows > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self)

    monkeypatch.setattr(Ticks, "step", limited)
    wanted = loopcd.generate(model, tokenizer, PROMPTS, loopcd.Greedy(), max_new_tokens=6)
    assert set(seen) == {5}
    most = 3
    assert loopcd.generate(model, tokenizer, PROMPTS, loopcd.Greedy(), max_new_tokens=6) == wanted
    assert set(seen) == {5, 3}
    room = int(2.5 * cache_bytes(model, max(map(len, PROMPTS)) + 6) / 0.9)
    monkeypatch.setattr(memory, "free_bytes", lambda device: room)
    assert loopcd.generate(model, tokenizer, PROMPTS, loopcd.Greedy(), max_new_tokens=6) == wanted
    assert seen[-1] < 3


@pytest.fixture
def kept() -> Iterator[Callable[[], int]]:
    """How many parts of caches there are that were not there before, with nobody collecting garbage."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield lambda: sum(issubclass(type(each), (LoopCache, Slot, Branch, Places)) for each in gc.get_objects())
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
@pytest.mark.parametrize(
    "method",
    [
        loopcd.Greedy(),
        loopcd.LoopCD(),
        loopcd.LoopCD(coda="own"),
        loopcd.Greedy(exit=loopcd.EarlyExit(0.5)),
        loopcd.LoopCD(1, exit=loopcd.EarlyExit(0.5, exited="skip")),
        loopcd.LoopCD(2, draft=loopcd.SelfDraft(1, 3)),
        loopcd.LoopCD(2, draft=loopcd.SelfDraft(1, wave=True)),
        loopcd.MTI(entropy_threshold=0.1),
        loopcd.NoiseCD(),
        loopcd.LoopGuidance(weight=0.5),
    ],
)
def test_what_was_kept_of_a_text_is_free_when_it_is_written(
    tokenizer: PreTrainedTokenizerFast, kept: Callable[[], int], method: Method, prompts: list[str], trace: bool
) -> None:
    """Not when garbage is collected, which a full device does not ask for."""
    loopcd.generate(tiny_huginn(), tokenizer, prompts, method, max_new_tokens=6, trace=trace)
    assert kept() == 0


def test_a_cache_a_stream_and_a_batch_leave_nothing(tokenizer: PreTrainedTokenizerFast, kept: Callable[[], int]) -> None:
    model = tiny_huginn()
    model(random_ids(2, 5), past_key_values=model.new_cache(), use_cache=True)
    list(loopcd.stream(model, tokenizer, "one", max_new_tokens=6))
    batch = loopcd.Batch(model, tokenizer, rows=2)
    handles = [batch.submit(prompt, max_new_tokens=6) for prompt in PROMPTS]
    assert len(list(batch)) == len(handles)
    del batch, handles
    assert kept() == 0
