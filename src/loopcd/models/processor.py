"""What the processor is good at."""

import platform
from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself; elsewhere each product is made of conversions and is far slower."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return any(_says(name) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _says(name: str) -> bool:
    asked = getattr(torch.cpu, name, None)
    return asked is not None and bool(asked())
