"""vLLM as an engine of evaluations: the same tasks, graders and store as the local one, on as many devices as there are."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from transformers import AutoTokenizer

from loopcd.decoding import Generation, Greedy, LoopCD, LoopGuidance, Method
from loopcd.decoding.texts import trim
from loopcd.evaluation.engine import CompletionRequest, Engine, plain, weights_hash
from loopcd.evaluation.session import Session
from loopcd.models import LoopedModel
from loopcd.models.presets import empty_model
from loopcd.serving.vllm.options import GRACE, EngineOptions, ResolvedOptions
from loopcd.serving.vllm.served import FIELDS, GUIDANCE, GUIDANCE_FIELDS, PREFIX, SWITCH

AT_ONCE = 256  # prompts handed over together, times the replicas; vLLM makes its own batches of them


@dataclass(frozen=True)
class VLLMEngine(Engine):
    """Greedy, LoopCD and LoopGuidance by vLLM. How many positions were contested it does not say: those counts are 0."""

    model: LoopedModel  # its shapes only, without weights
    tokenizer: Any
    started: ResolvedOptions
    workers: OneReplica | Replicas
    batch_size: int

    @classmethod
    def load(cls, options: EngineOptions, batch_size: int | None = None, **arguments: Any) -> VLLMEngine:
        """Start vLLM; `arguments` are further engine arguments of its own."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"--batch-size {batch_size}: a whole number of at least 1")
        started = options.resolve()
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is the caller's
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        every = started.start() | {"max_model_len": -1} | arguments  # as long texts as there is memory for
        from vllm.platforms import current_platform

        if current_platform.is_cpu() and options.tensor_parallel * options.data_parallel == 1:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process starts sooner than three
        workers = (Replicas if options.data_parallel > 1 else OneReplica)(every)
        tokenizer = AutoTokenizer.from_pretrained(started.folder, trust_remote_code=False)
        rows = batch_size or AT_ONCE * options.data_parallel
        return cls(empty_model(started.config), tokenizer, started, workers, rows)

    @property
    def num_loops(self) -> int:
        return self.model.num_loops

    def describe(self) -> dict[str, Any]:
        import vllm

        return {
            "engine": "vllm",
            "vllm": vllm.__version__,
            "model": self.started.options.name,
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
        self.extra_args(method)  # refused before anything is generated
        return plain(method.settled(self.model))

    def extra_args(self, method: Method) -> dict[str, Any]:
        """What a request has to say to be decoded by this method."""
        only = {"exit": None, "draft": None, "coda": "shared", "where": "all"}
        refused = [name for name, value in only.items() if getattr(method, name, value) not in (value, None)]
        if refused or not isinstance(method, Greedy | LoopCD | LoopGuidance):
            what = f"{type(method).__name__} with {refused[0]}" if refused else type(method).__name__
            raise ValueError(
                f"--engine vllm has greedy, loopcd and loopguidance, without exit, draft, where and coda=own; not {what}"
            )
        if isinstance(method, Greedy):
            return {SWITCH: False}
        prefix, fields = (f"{GUIDANCE}_", GUIDANCE_FIELDS) if isinstance(method, LoopGuidance) else (PREFIX, FIELDS)
        settled = method.settled(self.model)
        asked = {prefix + field: getattr(settled, field) for field in fields}
        self.started.served.read_request(asked)
        return asked

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        found = [len(ids) for ids in self._encode(prompts)]
        if max(found) >= self.model.max_context:
            raise ValueError(
                f"the longest prompt of this task has {max(found)} tokens, but {self.started.options.name} has a context of "
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
        made = self.workers.generate(self._fitting(prompts, request.max_new_tokens), params)
        return [self._generation(each.outputs[0], request.stop) for each in made]

    def close(self) -> None:
        """Stop vLLM. Several engines may live in one process, but what they share goes with the first that is stopped."""
        self.workers.close()

    def _fitting(self, prompts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
        """The prompts' tokens; refused where memory would end a text that the model's context does not."""
        ids = self._encode(prompts)
        longest, room = max(map(len, ids)), self.workers.config.model_config.max_model_len
        if min(longest + max_new_tokens, self.model.max_context) > room:
            raise ValueError(
                f"a prompt of {longest} tokens with {max_new_tokens} new ones: there is memory for texts of {room}; take fewer "
                "by --max-new-tokens, or more devices by --tensor-parallel"
            )
        return ids

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer(prompt).input_ids for prompt in prompts]

    def params(self, max_tokens: int, temperature: float = 0.0, **more: Any) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        whole = RequestOutputKind.FINAL_ONLY
        return SamplingParams(max_tokens=max_tokens, temperature=temperature, output_kind=whole, **more)

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


class OneReplica:
    """vLLM's offline engine: one model, on one device or split over several."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**arguments)
        self.config: Any = self.llm.llm_engine.vllm_config

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        """vLLM's output of each prompt, in order."""
        return self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], list(params), use_tqdm=False)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


class Replicas:
    """vLLM's asynchronous engine, which spreads requests over replicas of the model; its event loop has a thread of its own."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.engine: Any = self._run(self._call(AsyncLLM.from_engine_args, AsyncEngineArgs(**arguments)))
        self.config: Any = self.engine.vllm_config
        atexit.register(self.close)  # later, at the interpreter's end, vLLM no longer can

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        return self._run(self._all(prompts, params))

    def close(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            # in the event loop's own thread, so that nothing waits there for answers any more
            self._run(self._call(engine.shutdown, timeout=2 * GRACE))  # each replica waits for its worker

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _call(self, function: Callable[..., Any], *given: Any, **more: Any) -> Any:
        return function(*given, **more)

    async def _all(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        from vllm.v1.engine.exceptions import EngineDeadError

        async def one(ids: Sequence[int], each: Any) -> Any:
            made = self.engine.generate({"prompt_token_ids": list(ids)}, each, request_id=uuid4().hex)
            return [output async for output in made][-1]

        try:
            return await asyncio.gather(*(one(ids, each) for ids, each in zip(prompts, params, strict=True)))
        except EngineDeadError as error:
            raise ConnectionError(
                "a replica of vLLM is gone (killed, or short of memory?); answers of finished batches are kept: run the same "
                "command again to go on from there"
            ) from error
