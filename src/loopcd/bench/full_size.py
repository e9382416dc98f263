"""The shapes of public models with random weights: a prompt and a step, in each dtype, against the bytes that they read."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedConfig

from loopcd.bench.decode import FilledCache
from loopcd.bench.subjects import random_ids
from loopcd.bench.timing import Sample, Say, Spread, Timed, alternately, ratio, timed
from loopcd.bench.traffic import step_traffic
from loopcd.evaluation.engine import using_threads
from loopcd.models import LoopedModel
from loopcd.models.int8 import int8_bytes, to_int8
from loopcd.models.layout import lay_out
from loopcd.models.memory import free_bytes
from loopcd.models.presets import PUBLIC, empty_model

SUBJECTS = ("ByteDance/Ouro-1.4B", "tomg-group-umd/huginn-0125")
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.bfloat16}
PROMPT = 26  # tokens
ROOM = 0.85  # of the free memory


def bench_full_size(rounds: int, steps: int, say: Say, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Every model in as many kinds as fit in memory side by side, with one thread and with all; by wall time."""
    found: dict[str, Any] = {"prompt": PROMPT, "models": {}}
    unknown = [name for name in names or () if name not in PUBLIC]
    if unknown:
        raise ValueError(f"models={','.join(unknown)}: of full size there are {', '.join(PUBLIC)}")
    for name in names or SUBJECTS:
        config = PUBLIC[name]()
        kinds = _that_fit(empty_model(config))
        if not kinds:
            say(f"full-size: {name} does not fit in memory")
            continue
        say(f"full-size: {name} in {', '.join(kinds)}")
        models = {kind: made(config, kind) for kind in kinds}
        threads = {str(count): _measure(models, count, rounds, steps) for count in sorted({1, os.cpu_count() or 1})}
        found["models"][name] = {"weights": {kind: kept_bytes(model) for kind, model in models.items()}, "threads": threads}
    return found


def _that_fit(model: LoopedModel) -> list[str]:
    """The kinds that fit together, the smallest first chosen; int8 is made from bfloat16, which then is there for a while."""
    elements, left = sum(weight.numel() for weight in model.parameters()), free_bytes("cpu")
    needed = {"int8": int8_bytes(model), "bfloat16": 2 * elements, "float32": 4 * elements}
    kept, taken = [], 0
    for kind, size in needed.items():
        if left is None or taken + size + (size if kind == "int8" else 0) <= ROOM * left:
            kept.append(kind)
            taken += size
    return [kind for kind in KINDS if kind in kept]


@torch.no_grad()
def made(config: PreTrainedConfig, kind: str) -> LoopedModel:
    """The model with random weights, laid out or rounded."""
    torch.manual_seed(0)
    model: Any = empty_model(config)
    model = model.to(KINDS[kind]).to_empty(device="cpu")
    model.tie_weights()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.uniform_(-0.03, 0.03)
        else:
            weight.fill_(1.0)
    (to_int8 if kind == "int8" else lay_out)(model)
    return model.eval()


def kept_bytes(model: LoopedModel) -> int:
    return sum({each.data_ptr(): each.nbytes for each in (*model.parameters(), *model.buffers())}.values())


def _measure(models: dict[str, LoopedModel], threads: int, rounds: int, steps: int) -> dict[str, Any]:
    with using_threads(threads):
        tasks: dict[str, Timed] = {}
        for kind, model in models.items():
            tasks[f"prompt {kind}"] = partial(_prompt, model)
            tasks[f"step {kind}"] = FilledCache(model, PROMPT, 1, steps).decode
        samples = alternately(tasks, rounds)
    return {kind: _told(kind, model, samples) for kind, model in models.items()}


@torch.no_grad()
def _prompt(model: LoopedModel) -> Sample:
    ids = random_ids(model, 1, PROMPT)
    return timed(lambda: len(model(ids, past_key_values=model.new_cache(), logits_to_keep=1).logits))


def _told(kind: str, model: LoopedModel, samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """Seconds of a prompt and a step, over float32's where that was measured, and the bytes a second that a step reads."""
    prompt, step = samples[f"prompt {kind}"], samples[f"step {kind}"]
    if kind == "int8":  # the weights; keys and values are in bfloat16
        traffic = step_traffic(empty_model(model.config), PROMPT, torch.int8)
        needed = traffic.weights + 2 * traffic.cache
    else:
        needed = step_traffic(model, PROMPT).per_token()
    told: dict[str, Any] = {
        "prompt_seconds": asdict(Spread.of([1 / each.rate for each in prompt])),
        "step_seconds": asdict(Spread.of([1 / each.rate for each in step])),
        "step_bytes": needed,
        "bytes_per_second": asdict(Spread.of([each.rate * needed for each in step])),
    }
    if "step float32" in samples:
        told["prompt_over_float32"] = asdict(ratio(prompt, samples["prompt float32"]))
        told["step_over_float32"] = asdict(ratio(step, samples["step float32"]))
    return told
