"""What tracing allocates grows with the trace, not with vocabulary × loops × tokens."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

from loopcd.models import LoopedModel
from loopcd.tracing import Written, measure, trace_texts
from tools import random_ids, tiny_huginn, tiny_ouro


def peak(work: Callable[[], Any]) -> int:
    """The most bytes that torch's tensors take at any time, beside those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    every: Any = seen.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    events = [event for event in every if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def traced(model: LoopedModel, tokens: int, texts: int = 1) -> tuple[int, int]:
    """The peak of tracing texts of so many tokens, and the bytes of one trace."""
    items = [Written([1, 2], random_ids(1, tokens, seed=seed)[0].tolist()) for seed in range(texts)]
    sizes: list[int] = []
    found = peak(lambda: sizes.extend(trace.nbytes for trace in trace_texts(model, None, items, batch_size=1)))
    return found, sizes[0]


def make(family: str, vocabulary: int, loops: int = 4) -> LoopedModel:
    if family == "huginn":
        return tiny_huginn(0, vocab_size=vocabulary, mean_recurrence=loops)
    return tiny_ouro(0, vocab_size=vocabulary, total_ut_steps=loops)


@pytest.fixture(params=["huginn", "ouro"])
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(measure, "BLOCK", 1 << 14)
    return request.param


def test_not_with_the_vocabulary(family: str) -> None:
    small, large = (traced(make(family, vocabulary), 200)[0] for vocabulary in (1024, 8192))
    table = 8192 * 4 * 200 * 4  # bytes of all logits of the larger
    assert large < 1.2 * small and large < table / 10


def test_in_proportion_to_tokens_and_loops(family: str) -> None:
    (one, size), (long, longer), (deep, deeper) = (
        traced(make(family, 2048, loops), tokens) for loops, tokens in ((4, 60), (4, 240), (16, 60))
    )
    assert longer > 2 * size and deeper > 2 * size
    assert long - one < 4 * (longer - size) and deep - one < 4 * (deeper - size)


def test_one_batch_at_a_time(family: str) -> None:
    model = make(family, 2048)
    assert traced(model, 60, texts=6)[0] < 1.1 * traced(model, 60, texts=1)[0]
