"""Every family in vLLM gives the tokens of the transformers side in float32, however vLLM runs it."""

from collections.abc import Callable
from typing import Any

import pytest

from loopcd.decoding import LoopCD, LoopGuidance

pytestmark = pytest.mark.slow
families = pytest.mark.parametrize("family", ["huginn", "ouro", "nanbeige", "retrofit", "olmo"])


def metric(engine: Any, name: str) -> float:
    return sum(each.value for each in engine.get_metrics() if each.name == name)


@families
def test_greedy_and_loopcd_in_one_batch_and_from_cached_prefixes(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    assert len({tuple(tokens) for tokens in it.expected}) == 16
    with it.engine(block_size=32, enable_prefix_caching=True) as engine:
        it.check(engine)
        again = it.run(engine)  # now begins where the cached prefixes end
    cuts = [(each.num_cached_tokens,) for each in again]
    assert {0, 32} == {cut for (cut,) in cuts}
    it.check_in_parts(again, cuts)


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_chunked_prefill(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    with it.engine(max_num_seqs=1, max_num_batched_tokens=15, enable_prefix_caching=False) as engine:
        it.check_in_parts(it.run(engine), [range(15, len(case.prompt), 15) for case in it.cases])


def test_parts_of_a_prompt_change_the_first_token_of_huginn_and_nothing_of_ouro(subject: Callable[[str], Any]) -> None:
    """That the two tests above can tell: where an early loop is read the parts matter where there is a coda, and only there."""
    changed = {
        family: [
            case.method
            for case, tokens in zip(it.cases, it.expected, strict=True)
            if it.wanted_in_parts(case, range(15, len(case.prompt), 15)) != tokens
        ]
        for family in ("huginn", "ouro")
        for it in [subject(family)]
    }
    assert changed["ouro"] == [] and changed["huginn"] != []
    assert all(isinstance(method, LoopCD | LoopGuidance) for method in changed["huginn"])


@pytest.mark.parametrize("family", ["huginn", "ouro", "retrofit"])
def test_preempted_texts_are_those_that_were_not(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    few_blocks = {"block_size": 32, "num_gpu_blocks_override": 9, "max_model_len": 128, "enable_prefix_caching": False}
    with it.engine(**few_blocks, disable_log_stats=False) as engine:
        it.check(engine)
        assert metric(engine, "vllm:num_preemptions") > 0
        it.without_guidance().check(engine)


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_compiled(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    with it.engine(enforce_eager=False) as engine:
        mode = engine.llm_engine.vllm_config.compilation_config.mode
        assert mode is not None and int(mode) > 0
        it.check(engine)


@pytest.mark.parametrize("family", ["huginn", "ouro", "olmo"])  # the last has norms that go over both halves
def test_tensor_parallel(family: str, subject: Callable[[str], Any]) -> None:
    it = subject(family)
    with it.engine(tensor_parallel_size=2, enable_prefix_caching=False) as engine:
        it.check(engine)
        it.without_guidance().check(engine)


@pytest.mark.parametrize("name", ["tiny-huginn", "tiny-ouro"])
def test_built_in_models(name: str, subject: Callable[[str], Any]) -> None:
    it = subject(name)
    with it.engine(enable_prefix_caching=False) as engine:
        it.check(engine)
        it.without_guidance().check(engine)
