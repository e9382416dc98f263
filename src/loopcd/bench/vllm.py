"""vLLM: what LoopCD costs there, and how its speed compares with the local engine's.

The built-in models, or by their names the medium ones with random weights (`subjects`), whose heads are sharpened so that as
few tokens are contested as with a trained model.

All engines live in this process and take turns, and run as `loopcd serve` would run them: small models on a CPU without
compilation. "greedy" has an engine of its own that carries no amateur loop, so that the ratio holds all that LoopCD costs:
the amateur's coda, its head, and the contrast.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loopcd.bench.subjects import MEDIUM, Subject, disagreeing, sharpen, token_count
from loopcd.bench.timing import Sample, Say, Timed, alternately, rates, ratio, timed
from loopcd.decoding import Greedy, LoopCD, Method
from loopcd.models.loading import load
from loopcd.serving.vllm.engine import VLLMEngine
from loopcd.serving.vllm.options import EngineOptions

RATIOS = {
    "loopcd/greedy": ("vllm loopcd", "vllm greedy"),
    "carried/greedy": ("vllm greedy, amateur carried", "vllm greedy"),
    "vllm/local, greedy": ("vllm greedy", "local greedy"),
    "vllm/local, loopcd": ("vllm loopcd", "local loopcd"),
}


def bench_vllm(names: Sequence[str], batch: int, rounds: int, tokens: int, eager: bool, say: Say) -> dict[str, Any]:
    """By model: tokens a second of each engine and method, and the ratios. Every text has `tokens` tokens."""
    found = {}
    for name in names:
        say(f"vllm: {name}, starting the engines")
        with TemporaryDirectory() as folder:
            source, subject, prompts = _subject(name, batch, tokens, Path(folder))
            found[name] = _measured(source, subject, prompts, rounds, eager, say)
    return found


def _subject(name: str, batch: int, tokens: int, folder: Path) -> tuple[str, Subject, list[list[int]]]:
    """What vLLM is to load, the same for the local engine, and prompts; nothing ends a text early."""
    if name not in MEDIUM:
        model, tokenizer = load(name)
        return name, Subject(name, model, None, tokens), Subject(name, model, tokenizer, tokens).prompts(batch)
    subject = Subject(name, disagreeing(MEDIUM[name]()), None, tokens)
    prompts = subject.prompts(batch)
    sharpen(subject, prompts)
    subject.model.save_pretrained(folder)
    tokenizer = load("tiny-huginn")[1]  # vLLM wants one; no text is made of the tokens
    assert tokenizer is not None
    tokenizer.save_pretrained(folder)
    return str(folder), subject, prompts


def _measured(
    source: str, subject: Subject, prompts: Sequence[Sequence[int]], rounds: int, eager: bool, say: Say
) -> dict[str, Any]:
    started = {"max_num_seqs": len(prompts), "enable_prefix_caching": False} | ({"enforce_eager": True} if eager else {})
    plain = VLLMEngine.load(EngineOptions(source, amateur_loops=()), **started)
    carrying = VLLMEngine.load(EngineOptions(source), **started)
    tasks: dict[str, Timed] = {
        "vllm greedy": _vllm(plain, Greedy(), prompts, subject.max_new_tokens),
        "vllm greedy, amateur carried": _vllm(carrying, Greedy(), prompts, subject.max_new_tokens),
        "vllm loopcd": _vllm(carrying, LoopCD(), prompts, subject.max_new_tokens),
        "local greedy": lambda: _local(subject, Greedy(), prompts),
        "local loopcd": lambda: _local(subject, LoopCD(), prompts),
    }
    say(f"vllm: {subject.name}, {rounds} rounds")
    samples = alternately(tasks, rounds)
    device, without = plain.machine()["device"], plain.workers.config.model_config.enforce_eager
    plain.close()
    carrying.close()
    cpu = device == "cpu"  # on a device of its own only the clock on the wall sees the work
    return {
        "batch": len(prompts),
        "device": device,
        "eager": without,
        "clock": "cpu" if cpu else "wall",
        "ratios": {key: asdict(ratio(samples[of], samples[to], cpu)) for key, (of, to) in RATIOS.items()},
        "tokens_per_cpu_second" if cpu else "tokens_per_second": {
            key: asdict(rates(each, cpu)) for key, each in samples.items()
        },
    }


def _vllm(engine: VLLMEngine, method: Method, prompts: Sequence[Sequence[int]], tokens: int) -> Timed:
    params = [engine.params(tokens, ignore_eos=True, detokenize=False, extra_args=engine.extra_args(method))] * len(prompts)

    def work() -> int:
        return sum(len(each.outputs[0].token_ids) for each in engine.workers.generate(prompts, params))

    return lambda: timed(work)


def _local(subject: Subject, method: Method, prompts: Sequence[Sequence[int]]) -> Sample:
    job = subject.job(prompts)
    return timed(lambda: token_count(method.rows(job)))
