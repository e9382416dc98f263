"""Plain decoding against its limit: tokens per CPU second at several contexts and batches, and what grows with the context."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F

from loopcd.bench.subjects import MEDIUM, random_ids
from loopcd.bench.timing import Sample, Say, Spread, Stopwatch, Timed, alternately, rates, ratio
from loopcd.bench.traffic import Stream, step_traffic
from loopcd.models import LoopedModel

CHUNK = 256  # tokens of a prefill pass


class FilledCache:
    """A model with a filled cache, of which single-token passes can be timed again and again."""

    def __init__(self, model: LoopedModel, context: int, batch: int, steps: int) -> None:
        self.model, self.batch, self.steps, self.context = model, batch, steps, context
        self.token = random_ids(model, batch, 1, seed=2)
        self.cache = model.new_cache()
        ids = random_ids(model, 1, context)
        with torch.no_grad():
            for start in range(0, context, CHUNK):
                model(ids[:, start : start + CHUNK], past_key_values=self.cache, logits_to_keep=1)
        self.cache.batch_repeat_interleave(batch)  # the time does not depend on what the rows hold

    @torch.no_grad()
    def decode(self) -> Sample:
        """Tokens, and the time; the cache is left as it was."""
        watch = Stopwatch()
        with watch.running():
            for _ in range(self.steps):
                self.model(self.token, past_key_values=self.cache, logits_to_keep=1)
        self.cache.crop(-self.steps)
        return watch.sample(self.batch * self.steps)

    @torch.no_grad()
    def attend(self) -> Sample:
        """The attention of the same steps alone: one call for each slot of the cache."""
        watch = Stopwatch()
        slots = [self.cache.slot(index) for index in range(len(self.cache.layers))]
        held = [(slot.keys, slot.values) for slot in slots if slot.keys is not None and slot.values is not None]
        query = torch.randn(self.batch, held[0][0].shape[1], 1, held[0][0].shape[3]).to(held[0][0])
        with watch.running():
            for _ in range(self.steps):
                for keys, values in held:
                    F.scaled_dot_product_attention(query, keys, values)
        return watch.sample(self.batch * self.steps)


def bench_decode(
    contexts: Sequence[int], batches: Sequence[int], rounds: int, steps: int, say: Say, seconds: float | None = None
) -> dict[str, Any]:
    """All contexts and batches of the medium models, in rounds with the bandwidth; no new round after `seconds` a model."""
    found: dict[str, Any] = {"contexts": list(contexts), "batches": list(batches), "models": {}}
    stream, measured = Stream(), []
    for name, make in MEDIUM.items():
        say(f"decode: {name}")
        model = make()
        cells = {
            (batch, context): FilledCache(model, context, batch, max(2, steps // batch))
            for batch in batches
            for context in contexts
        }
        tasks: dict[str, Timed] = {"bandwidth": stream}
        for (batch, context), cell in cells.items():
            tasks[f"decode {batch} {context}"], tasks[f"attend {batch} {context}"] = cell.decode, cell.attend
        samples = alternately(tasks, rounds, seconds=seconds)
        measured += samples["bandwidth"]
        found["models"][name] = describe(model, list(cells), samples)
    found["bandwidth"] = asdict(rates(measured, cpu=True))
    return found


def describe(model: LoopedModel, cells: list[tuple[int, int]], samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """What the samples say, cell by cell and across them."""
    bandwidth = rates(samples["bandwidth"], cpu=True)
    told = {"bandwidth": asdict(bandwidth), "cells": [], "batch_gain": {}, "growth": {}}
    for batch, context in cells:
        told["cells"].append(_cell(model, batch, context, samples, bandwidth))
    contexts, batches = sorted({c for _, c in cells}), sorted({b for b, _ in cells})
    if len(batches) > 1:
        few, many = batches[0], batches[-1]
        for context in contexts:
            gain = ratio(samples[f"decode {many} {context}"], samples[f"decode {few} {context}"], cpu=True)
            told["batch_gain"][str(context)] = asdict(gain)
    if len(contexts) > 1:
        for batch in batches:
            told["growth"][str(batch)] = growth(batch, contexts[0], contexts[-1], samples)
    return told


def _cell(model: LoopedModel, batch: int, context: int, samples: dict[str, list[Sample]], bandwidth: Spread) -> dict[str, Any]:
    traffic = step_traffic(model, context)
    speed, streamed = samples[f"decode {batch} {context}"], samples["bandwidth"]
    needed = traffic.per_token(batch)
    share = Spread.of([a.cpu_rate * needed / b.cpu_rate for a, b in zip(speed, streamed, strict=True)])
    return {
        "batch": batch,
        "context": context,
        "tokens_per_cpu_second": asdict(rates(speed, cpu=True)),
        "weight_bytes": traffic.weights,
        "cache_bytes": traffic.cache,
        "bytes_per_token": needed,
        "limit": bandwidth.median / needed,
        "share_of_limit": asdict(share),
    }


def growth(batch: int, short: int, long: int, samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """How much dearer a step is at the long context, and how much of that the attention alone takes (both in seconds)."""

    def more(kind: str) -> list[float]:
        pairs = zip(samples[f"{kind} {batch} {long}"], samples[f"{kind} {batch} {short}"], strict=True)
        return [batch / a.cpu_rate - batch / b.cpu_rate for a, b in pairs]

    step, attention = Spread.of(more("decode")), Spread.of(more("attend"))
    return {"from": short, "to": long, "step_seconds": step.median, "attention_seconds": attention.median}
