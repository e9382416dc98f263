"""How much memory a looped model's cache takes, told in advance; and that of a CPU, kept from pass to pass."""

import ctypes
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from loopcd.models.stages import LoopedModel

KEPT = 2**30  # bytes of freed memory that are kept for the next pass
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # what glibc's mallopt calls so; the first is 32 MiB at most


def cache_bytes(
    model: "LoopedModel", tokens: int, batch: int = 1, num_loops: int | None = None, dtype: torch.dtype | None = None
) -> int:
    """Bytes of keys and values: slots × tokens × heads × head size × 2; without a limit a cache takes up to half more."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = (dtype or model.dtype).itemsize
    return 2 * model.key_heads(num_loops) * tokens * batch * head_dim * size


def free_bytes(device: torch.device | str) -> int | None:
    """Memory that is free on the device, or None where that cannot be known.

    What torch keeps there for its next tensors is free as well, though the driver counts it as taken.
    """
    device = torch.device(device)
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return _available() if device.type == "cpu" else None


def _available() -> int | None:
    """The kernel's own estimate, where it has one: free pages alone would count the page cache as taken."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else 1024 * int(found[1])


def free_beside(model: "LoopedModel") -> int | None:
    """Memory that is free where the model is, on all of its devices together; None where that cannot be known."""
    found = [free_bytes(device) for device in {weight.device for weight in model.parameters() if not weight.is_meta}]
    known = [each for each in found if each is not None]
    return sum(known) if known and len(known) == len(found) else None


def check_memory(model: "LoopedModel", tokens: int, batch: int, num_loops: int | None = None) -> None:
    """Refuse texts of up to `tokens` tokens whose cache cannot fit, before anything is computed."""
    needed, free = cache_bytes(model, tokens, batch, num_loops), free_beside(model)
    if free is not None and needed > free:
        raise MemoryError(
            f"the cache of {batch} × {tokens} tokens takes {gigabytes(needed)} ({model.slot_count(num_loops)} slots of keys "
            f"and values), but {gigabytes(free)} are free on {model.device}: use fewer rows, tokens or loops"
        )


def rows_that_fit(model: "LoopedModel", tokens: int, num_loops: int | None = None) -> int | None:
    """How many texts of `tokens` tokens have room for their caches, a tenth being left for all else; None: not known."""
    free = free_beside(model)
    return None if free is None else int(0.9 * free) // cache_bytes(model, tokens, 1, num_loops)


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


@lru_cache(maxsize=1)
def keep_freed() -> None:
    """Have the C library keep what a pass frees for the next one, where it is glibc and nobody told it what to keep.

    It gives large blocks back to the kernel, which makes their pages anew when they are next asked for: up to a seventh of the
    time of a prompt.
    """
    told = "malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name.startswith("MALLOC_") for name in os.environ)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    if not told:
        mallopt(MMAP_THRESHOLD, 2**25)
        mallopt(TRIM_THRESHOLD, KEPT)
