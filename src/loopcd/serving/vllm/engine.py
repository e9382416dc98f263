"""vLLM as an engine of evaluations: the same tasks, graders and store as the local one, on as many devices as there are."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import uuid4

from transformers import AutoTokenizer

from loopcd.decoding import Generation, Greedy, LoopCD, LoopGuidance, Method
from loopcd.decoding.texts import trim
from loopcd.evaluation.engine import CompletionRequest, Engine, plain, weights_hash
from loopcd.evaluation.session import Session
from loopcd.models import LoopedModel
from loopcd.models.presets import empty_model
from loopcd.serving.vllm import register
from loopcd.serving.vllm.options import GRACE, MISSING, EngineOptions, ResolvedOptions, be_patient
from loopcd.serving.vllm.served import FIELDS, GUIDANCE, GUIDANCE_FIELDS, PREFIX, SWITCH, Served

AT_ONCE = 256  # prompts handed over together, times the replicas; vLLM makes its own batches of them


@dataclass(frozen=True)
class VLLMEngine(Engine):
    """Greedy, LoopCD and LoopGuidance by vLLM. How many positions were contested it does not say: those counts are 0."""

    model: LoopedModel  # its shapes only, without weights
    tokenizer: Any
    name: str
    started: ResolvedOptions
    workers: Workers
    batch_size: int

    @classmethod
    def load(cls, options: EngineOptions, batch_size: int | None = None, **arguments: Any) -> VLLMEngine:
        """Start vLLM; `arguments` are further engine arguments of its own."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"--batch-size {batch_size}: a whole number of at least 1")
        started = options.resolve()
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is the caller's
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        be_patient()
        try:
            from vllm.platforms import current_platform
        except ImportError as error:
            raise ValueError(MISSING) from error
        register()
        cpu = current_platform.is_cpu()
        if cpu and options.tensor_parallel * options.data_parallel == 1:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process starts sooner than three
        all_arguments = {**started.arguments(cpu), **arguments}
        workers = Replicas(all_arguments) if options.data_parallel > 1 else OneReplica(all_arguments)
        tokenizer = AutoTokenizer.from_pretrained(started.folder, trust_remote_code=False)
        rows = batch_size or AT_ONCE * options.data_parallel
        return cls(empty_model(started.config), tokenizer, options.name, started, workers, rows)

    @property
    def num_loops(self) -> int:
        return self.model.num_loops

    @property
    def served(self) -> Served:
        return self.started.served

    def describe(self) -> dict[str, Any]:
        import vllm

        return {
            "engine": "vllm",
            "vllm": vllm.__version__,
            "model": self.name,
            "model_type": self.model.config.model_type,
            "weights": weights_hash(self.started.folder),
            "loops": self.num_loops,
            "dtype": self.started.dtype,
            "batch_size": self.batch_size,
        }

    def machine(self) -> dict[str, Any]:
        from vllm.platforms import current_platform

        return {
            "device": current_platform.device_type,
            "device_name": current_platform.get_device_name(),
            "tensor_parallel": self.started.options.tensor_parallel,
            "data_parallel": self.started.options.data_parallel,
        }

    def settings(self, method: Method) -> dict[str, Any]:
        asked = self.extra_args(method)
        return plain(method) | {field: asked[PREFIX + field] for field in FIELDS if PREFIX + field in asked}

    def extra_args(self, method: Method) -> dict[str, Any]:
        """What a request has to say to be decoded by this method."""
        refused = [name for name in ("exit", "draft") if getattr(method, name) is not None]
        refused += [
            name for name, only in (("coda", "shared"), ("where", "all")) if getattr(method, name, only) not in (only, None)
        ]
        if refused or not isinstance(method, Greedy | LoopCD | LoopGuidance):
            what = f"{type(method).__name__} with {refused[0]}" if refused else type(method).__name__
            raise ValueError(
                f"--engine vllm has greedy, loopcd and loopguidance, without exit, draft, where and coda=own; not {what}"
            )
        if isinstance(method, Greedy):
            return {SWITCH: False}
        if isinstance(method, LoopGuidance):
            asked = {f"{GUIDANCE}_{field}": getattr(method, field) for field in GUIDANCE_FIELDS}
        else:
            amateur, strength = method.resolve(self.model, self.num_loops)
            setting = (amateur, strength, method.plausibility)
            asked = {PREFIX + field: value for field, value in zip(FIELDS, setting, strict=True)}
        self.served.read_request(asked)
        return asked

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        found = [len(ids) for ids in self._encode(prompts)]
        if max(found) >= self.model.max_context:
            raise ValueError(
                f"the longest prompt of this task has {max(found)} tokens, but {self.name} has a context of "
                f"{self.model.max_context}: the task needs another model"
            )
        return found

    def warm_up(self, prompts: Sequence[str]) -> None:
        self.workers.generate(self._encode(prompts), [self.params(2)] * len(prompts))

    def complete(self, prompts: Sequence[str], method: Method, request: CompletionRequest) -> list[Generation]:
        extra = self.extra_args(method)
        params = [
            self.params(
                request.max_new_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                stop=list(request.stop),
                seed=((request.seed or 0) * 1_000_003 + number) % 2**63 if request.temperature else None,
                extra_args=extra,
            )
            for number in request.numbers
        ]
        made = self.workers.generate(self._encode(prompts), params)
        return [self._generation(each.outputs[0], request.stop) for each in made]

    def close(self) -> None:
        """Stop vLLM. Several engines may live in one process, but what they share goes with the first that is stopped."""
        self.workers.close()

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer(prompt).input_ids for prompt in prompts]

    def params(self, max_tokens: int, temperature: float = 0.0, **more: Any) -> Any:
        from vllm import SamplingParams

        return SamplingParams(max_tokens=max_tokens, temperature=temperature, **more)

    def _generation(self, made: Any, stop: Sequence[str]) -> Generation:
        """The text as the local engine makes it from the same tokens."""
        if made.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a text by {made.finish_reason!r}")
        tokens = list(made.token_ids)
        text, _ = trim(self.tokenizer.decode(tokens, skip_special_tokens=True), stop)
        return Generation(text, tokens, made.finish_reason, [self.num_loops] * len(tokens), 0, 0)


def evaluation_engine(session: Session, tensor_parallel: int = 1, data_parallel: int = 1) -> VLLMEngine:
    """The engine of an evaluation, started for the amateur loops that its methods contrast with, and for no others."""
    plan = session.plan()
    if session.device is not None:
        raise ValueError(f"--device {session.device}: vLLM runs on the devices that it was built for; leave it out")
    if session.allow_pickle:
        raise ValueError("--allow-pickle: vLLM is given safetensors only; convert the weights, or take --engine local")
    if plan.seeds is not None and not plan.temperature:
        raise ValueError("--seeds: in vLLM Huginn starts from the zero state, so that nothing is drawn at temperature 0")
    options = EngineOptions(
        session.model,
        dtype=session.dtype,
        num_loops=session.num_loops,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
    )
    model = empty_model(options.resolve().config)
    methods = [spec.build() for spec in plan.methods]
    loops = {method.resolve(model)[0] for method in methods if isinstance(method, LoopCD)}
    loops |= {method.early_loop for method in methods if isinstance(method, LoopGuidance)}
    return VLLMEngine.load(replace(options, amateur_loops=tuple(sorted(loops))), session.batch_size)


class Workers(Protocol):
    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        """vLLM's output of each prompt, in order."""
        ...

    def close(self) -> None: ...


class OneReplica:
    """vLLM's offline engine: one model, on one device or split over several."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**arguments)

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        return self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], list(params), use_tqdm=False)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


class Replicas:
    """vLLM's asynchronous engine, which spreads requests over replicas of the model; its event loop has a thread of its own."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.engine: Any = self._run(self._start(arguments))
        atexit.register(self.close)  # later, at the interpreter's end, vLLM no longer can

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        return self._run(self._all(prompts, params))

    def close(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            self._run(self._stop(engine))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _start(self, arguments: dict[str, Any]) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def _stop(self, engine: Any) -> None:
        # in the event loop's own thread, so that nothing waits there for answers any more
        engine.shutdown(timeout=2 * GRACE)  # each replica waits for its worker

    async def _all(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return await asyncio.gather(*(self._one(ids, each) for ids, each in zip(prompts, params, strict=True)))
        except EngineDeadError as error:
            raise ConnectionError(
                "a replica of vLLM is gone (killed, or short of memory?); answers of finished batches are kept: run the same "
                "command again to go on from there"
            ) from error

    async def _one(self, ids: Sequence[int], params: Any) -> Any:
        from vllm.sampling_params import RequestOutputKind

        params = params.clone()
        params.output_kind = RequestOutputKind.FINAL_ONLY
        last = None
        async for output in self.engine.generate({"prompt_token_ids": list(ids)}, params, request_id=uuid4().hex):
            last = output
        return last
