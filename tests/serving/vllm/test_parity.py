"""Ouro and Huginn in vLLM give the tokens of the transformers side in float32, however vLLM runs them."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow
families = pytest.mark.parametrize("family", ["huginn", "ouro"])


def metric(engine: Any, name: str) -> float:
    return sum(each.value for each in engine.get_metrics() if each.name == name)


@families
def test_greedy_and_loopcd_in_one_batch_and_from_cached_prefixes(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    assert len({tuple(tokens) for tokens in it.expected}) == 16
    with it.engine(block_size=32, enable_prefix_caching=True) as engine:
        it.check(engine)
        again = it.check(engine)  # now begins where the cached prefixes end
    assert any(each.num_cached_tokens for each in again)


@families
def test_chunked_prefill_with_preemption(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    few_blocks = {"block_size": 32, "num_gpu_blocks_override": 9, "max_num_batched_tokens": 20, "max_model_len": 128}
    with it.engine(**few_blocks, disable_log_stats=False) as engine:
        it.check(engine)
        assert metric(engine, "vllm:num_preemptions") > 0


@families
def test_compiled(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    with it.engine(enforce_eager=False) as engine:
        mode = engine.llm_engine.vllm_config.compilation_config.mode
        assert mode is not None and int(mode) > 0
        it.check(engine)


@families
def test_tensor_parallel(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    with it.engine(tensor_parallel_size=2) as engine:
        it.check(engine)


@pytest.mark.parametrize("name", ["tiny-huginn", "tiny-ouro"])
def test_built_in_models(name: str, subject: Callable[[str], Any]) -> None:
    it = subject(name)
    with it.engine() as engine:
        it.check(engine)
