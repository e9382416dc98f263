"""Engines in this process, small ones; what they compile and cache goes to a folder of the session's own."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

_CACHES = tempfile.TemporaryDirectory(prefix="loopcd-vllm-")
os.environ.update(  # before vLLM is first imported
    OMP_NUM_THREADS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_WORKER_MULTIPROC_METHOD="spawn",
    VLLM_CACHE_ROOT=f"{_CACHES.name}/vllm",
    TORCHINDUCTOR_CACHE_DIR=f"{_CACHES.name}/inductor",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
)

import torch  # noqa: E402

from loopcd.decoding import LoopGuidance  # noqa: E402
from loopcd.models import LoopedModel  # noqa: E402
from loopcd.models.loading import load  # noqa: E402
from loopcd.models.names import built_in  # noqa: E402
from serving.parity import SMALL, Case, assert_same, random_prompts, sixteen, wanted, wanted_in_parts  # noqa: E402
from tools import EOS, LATER, MAKERS, byte_tokenizer, configure, save_model  # noqa: E402


@dataclass(frozen=True)
class Subject:
    """A model on disk and in transformers, sixteen requests, and what transformers makes of them."""

    folder: Path
    model: LoopedModel
    tokenizer: Any
    amateur_loops: list[int]
    cases: list[Case]
    tokens: int
    expected: list[list[int]]

    @classmethod
    def make(cls, folder: Path, model: LoopedModel, tokenizer: Any, prompts: list[list[int]], tokens: int) -> "Subject":
        loops = sorted({1, model.num_loops - 1})
        cases = sixteen(prompts, [loops[0], loops[-1]])
        return cls(folder, model, tokenizer, loops, cases, tokens, wanted(model, tokenizer, cases, tokens))

    @contextmanager
    def engine(self, **arguments: Any) -> Iterator[Any]:
        """One at a time: when an engine stops, so does what all engines of a process share."""
        from vllm import LLM

        additional = {"loopcd": {"amateur_loops": self.amateur_loops}}
        given = {"model": str(self.folder), "additional_config": additional, "enforce_eager": True, **SMALL, **arguments}
        engine = LLM(**given)
        try:
            yield engine
        finally:
            engine.llm_engine.engine_core.shutdown()

    def check(self, engine: Any) -> list[Any]:
        """All cases in one batch are what transformers makes of them; gives vLLM's outputs."""
        outputs = self.run(engine)
        assert_same(self.model, self.cases, [list(each.outputs[0].token_ids) for each in outputs], self.expected)
        return outputs

    def without_guidance(self) -> "Subject":
        """Where no LoopGuidance is in a batch, a model with a coda reads its amateurs out in contested rows alone."""
        kept = [pair for pair in zip(self.cases, self.expected, strict=True) if not isinstance(pair[0].method, LoopGuidance)]
        return replace(self, cases=[case for case, _ in kept], expected=[tokens for _, tokens in kept])

    def check_in_parts(self, outputs: list[Any], cuts: Sequence[Sequence[int]]) -> None:
        """The same where prompts were read in parts, cut at these tokens."""
        expected = [self.wanted_in_parts(case, cut) for case, cut in zip(self.cases, cuts, strict=True)]
        found = [list(each.outputs[0].token_ids) for each in outputs]
        assert_same(self.model, self.cases, found, expected, cuts)

    def wanted_in_parts(self, case: Case, cuts: Sequence[int]) -> list[int]:
        return wanted_in_parts(self.model, case, self.tokens, cuts, self.tokenizer.eos_token_id)

    def run(self, engine: Any) -> list[Any]:
        from vllm import SamplingParams

        params = [SamplingParams(temperature=0, max_tokens=self.tokens, extra_args=case.asked) for case in self.cases]
        return engine.generate([{"prompt_token_ids": list(case.prompt)} for case in self.cases], params, use_tqdm=False)


def _random(family: str, folder: Path) -> Subject:
    """Random weights; grouped key/value heads where the family may have them."""
    sizes: dict[str, dict[str, Any]] = {
        # heads of the smallest size that vLLM has kernels for; the others' are smaller, and padded
        "huginn": {"n_embd": 128, "n_layers_in_prelude": 2, "n_layers_in_coda": 2},
        "ouro": {"hidden_size": 128, "num_key_value_heads": 2},
        "nanbeige": {},
        "retrofit": {"n_layers_in_coda": 2, "bias": True},
        "olmo": {"n_layers_in_coda": 2, "initial_state_mode": "skip-adapter"},
    }
    model = {**MAKERS, **LATER}[family](intermediate_size=96, eos_token_id=EOS, **sizes[family])
    save_model(folder, model)
    configure(folder, layers_like="llama")  # as it is without the field; only the weights' names tell
    return Subject.make(folder, model, byte_tokenizer(), random_prompts(16, EOS - 2), 24)


def _built_in(name: str) -> Subject:
    from loopcd.evaluation.tasks import steps

    model, tokenizer = load(name)
    assert tokenizer is not None
    prompts = [tokenizer(each.prompt).input_ids for each in steps.problems("steps", "test", 16)]
    return Subject.make(built_in()[name], model, tokenizer, prompts, 80)


@pytest.fixture(scope="session")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Random models by family, built-in ones by name, each made once."""
    torch.set_num_threads(1)
    made: dict[str, Subject] = {}

    def get(name: str) -> Subject:
        if name not in made:
            made[name] = _built_in(name) if name in built_in() else _random(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture(scope="session", autouse=True)
def _caches() -> Iterator[None]:
    yield
    _CACHES.cleanup()
