"""Peaks of resident memory, each in a fresh process: loading a checkpoint, and generating plain and drafted."""

import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from loopcd.models import HuginnConfig, HuginnForCausalLM

# Run in a fresh interpreter. The imports are not the model's memory, so what they take is told apart.
_LOADER = textwrap.dedent(
    """
    import json, sys, time
    import benchmarks.memory as memory
    from loopcd.models.loading import load
    before, start = memory.resident("VmRSS"), time.perf_counter()
    load(sys.argv[1])
    print(json.dumps({"before": before, "peak": memory.resident("VmHWM"), "seconds": time.perf_counter() - start}))
    """
)
_GENERATOR = textwrap.dedent(
    """
    import json, sys
    import torch
    import benchmarks.memory as memory
    from loopcd.bench.subjects import Subject
    from loopcd.bench.speeds import suite
    from loopcd.models.loading import load
    torch.set_num_threads(1)
    name, method, batch, tokens, context = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    subject = Subject(name, *load(name), tokens)
    prompts = subject.prompts(batch)
    if context:  # whole texts of that length, the question again and again
        room = min(context, subject.model.max_context - tokens)
        prompts = [(prompt * (room // len(prompt) + 1))[-room:] for prompt in prompts]
    method = suite(subject.model)[method]
    if method.draft is not None:
        method.rows(subject.job(prompts[:1]))  # else a draft by rule would only learn
    loaded, job = memory.resident("VmRSS"), subject.job(prompts)
    method.rows(job)
    told = {"loaded_bytes": loaded, "peak_bytes": memory.resident("VmHWM"), "cache_bytes": job.cache.nbytes}
    print(json.dumps(told))
    """
)

METHODS = ("greedy", "loopcd")  # each plain and drafted
LARGE = HuginnConfig(  # 1.1 GB in float32
    n_embd=2048,
    n_heads=16,
    intermediate_size=5632,
    n_layers_in_prelude=1,
    n_layers_in_recurrent_block=3,
    n_layers_in_coda=1,
    mean_recurrence=16,
    vocab_size=4096,
)
SMALL = HuginnConfig(  # 0.1 GB
    n_embd=768,
    n_heads=12,
    intermediate_size=1536,
    n_layers_in_prelude=1,
    n_layers_in_recurrent_block=2,
    n_layers_in_coda=1,
    mean_recurrence=16,
    vocab_size=4096,
)


def resident(field: str) -> int | None:
    """Bytes of this process that are resident now (VmRSS) or were at most (VmHWM); None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def bench_load(config: HuginnConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Save a checkpoint with random weights, load it in a process of its own, and compare its peak with the file."""
    with tempfile.TemporaryDirectory(prefix="loopcd-bench-") as folder:
        say("load: writing a checkpoint")
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            HuginnForCausalLM(config).save_pretrained(folder)
        finally:
            if shown:
                transformers_logging.enable_progress_bar()
        size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        say(f"load: {size / 1e9:.2f} GB in a process of its own")
        return describe_load(size, _apart(_LOADER, folder))


def describe_load(size: int, told: dict[str, Any]) -> dict[str, Any]:
    if told["peak"] is None:
        return {"checkpoint_bytes": size, "peak_bytes": None, "over_checkpoint": None, "seconds": told["seconds"]}
    used = told["peak"] - told["before"]
    return {"checkpoint_bytes": size, "peak_bytes": used, "over_checkpoint": used / size, "seconds": told["seconds"]}


def bench_memory(
    names: Sequence[str], batches: Sequence[int], tokens: int, say: Callable[[str], None], contexts: Sequence[int] = (0,)
) -> dict[str, Any]:
    """The peak of generating drafted over that of generating plain; nothing where the system does not tell.

    `contexts` are lengths of the prompts, or of what the model has room for; 0 takes the questions as they are.
    """
    found: dict[str, Any] = {}
    if resident("VmHWM") is None:
        return found
    for name, batch, context, method in product(names, batches, contexts, METHODS):
        case = f"batch {batch}" + (f", context {context}" if context else "")
        say(f"memory: {name}, {case}, {method}")
        sizes = str(batch), str(tokens), str(context)
        plain, drafted = (_apart(_GENERATOR, name, each, *sizes) for each in (method, f"{method}+draft"))
        told = {"plain": plain, "drafted": drafted, "drafted_over_plain": drafted["peak_bytes"] / plain["peak_bytes"]}
        told["cache_over_plain"] = drafted["cache_bytes"] / plain["cache_bytes"]
        found.setdefault(name, {}).setdefault(case, {})[method] = told
    return found


def _apart(script: str, *arguments: str) -> dict[str, Any]:
    """What the script prints as JSON when it runs in a process of its own."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        raise ValueError(f"measuring {arguments[0]} in a process of its own failed: {reason}")
    return json.loads(done.stdout)
