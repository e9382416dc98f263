"""What a cache takes is told in advance, and what cannot fit is refused before anything is computed."""

import os
import platform
import subprocess
import sys

import pytest
import torch

import loopcd
from loopcd.models import LoopCache, LoopedModel, cache_bytes
from loopcd.models.memory import check_memory, free_bytes
from loopcd.models.presets import PUBLIC, empty_model, preset
from standin import devices, placed
from tools import LATER, MAKERS, random_ids, tiny_parcae


@pytest.mark.parametrize(
    ("name", "slots", "heads", "head_dim"),
    [
        ("tomg-group-umd/huginn-0125", 2 + 2 + 32 * 4, 55, 96),
        ("ByteDance/Ouro-1.4B", 4 * 24, 16, 128),
        ("ByteDance/Ouro-2.6B", 4 * 48, 16, 128),
    ],
)
def test_the_public_models_worked_out_by_hand(name: str, slots: int, heads: int, head_dim: int) -> None:
    model = empty_model(PUBLIC[name]())
    assert cache_bytes(model, 1000, batch=3, dtype=torch.bfloat16) == 2 * slots * 3000 * heads * head_dim * 2
    assert cache_bytes(model, 1) == 2 * slots * heads * head_dim * model.dtype.itemsize


def test_it_counts_grouped_heads_and_loops() -> None:
    for family in ("huginn", "ouro"):
        whole, grouped = MAKERS[family](), MAKERS[family](num_key_value_heads=1)
        assert cache_bytes(whole, 10) == 4 * cache_bytes(grouped, 10)
        assert cache_bytes(whole, 10, num_loops=9) > cache_bytes(whole, 10) > cache_bytes(whole, 10, num_loops=1)


@pytest.mark.parametrize("rows", [1, 4])
def test_it_is_what_the_cache_holds(model: LoopedModel, rows: int) -> None:
    cache = LoopCache(limit=17)
    model(random_ids(rows, 17), past_key_values=cache, use_cache=True)
    assert cache.nbytes == cache_bytes(model, 17, batch=rows)


@pytest.mark.parametrize("family", [*LATER, "parcae grouped"])
def test_of_layers_with_other_heads_too(family: str) -> None:
    """Parcae's core has a key for each head, where its prelude and its coda share them."""
    grouped = {"num_attention_heads": 6, "num_key_value_heads": 2, "mean_backprop_depth": 1, "n_layers_in_recurrent_block": 1}
    model = LATER[family]() if family in LATER else tiny_parcae(**grouped)
    for loops in (2, model.num_loops):
        cache = LoopCache(limit=17)
        model(random_ids(2, 17), past_key_values=cache, num_loops=loops)
        assert cache.nbytes == cache_bytes(model, 17, batch=2, num_loops=loops)


def test_free_memory_is_known_here() -> None:
    free = free_bytes("cpu")
    assert free is not None and free > 10**6
    assert free_bytes("meta") is None


def test_a_cache_that_cannot_fit_is_refused_before_the_first_token(model: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = cache_bytes(model, 22, batch=2)  # the prompt and what may follow it
    memory = sys.modules[check_memory.__module__]
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed - 1)

    def computed(*_: object) -> None:
        raise AssertionError("computed something first")

    handle = model.register_forward_pre_hook(computed)
    try:
        with pytest.raises(MemoryError, match=r"the cache of 2 × 22 tokens takes .* MB .*slots.* free on cpu: use fewer"):
            model.generate(random_ids(2, 20), max_new_tokens=2)
    finally:
        handle.remove()
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed)
    assert model.generate(random_ids(2, 20), max_new_tokens=2, do_sample=False).shape == (2, 22)
    with pytest.raises(MemoryError, match=r"2 × 22 tokens"):
        model.generate(random_ids(2, 20), max_new_tokens=2, num_loops=model.num_loops + 1)
    with pytest.raises(MemoryError, match=r"2 × 23 tokens"):
        model.generate(random_ids(2, 20), max_new_tokens=3, custom_generate=loopcd.LoopCD())


def test_what_torch_keeps_on_a_gpu_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"mem_get_info": (100, 1000), "memory_reserved": 700, "memory_allocated": 250}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_bytes("cuda:0") == 100 + 450


def test_a_plain_pass_keeps_no_cache(model: LoopedModel) -> None:
    assert model(random_ids(1, 5)).past_key_values is None
    assert model(random_ids(1, 5), use_cache=True).past_key_values.length == 5


def test_a_cache_whose_limit_is_known_is_allocated_once(model: LoopedModel) -> None:
    cache, places = LoopCache(limit=90), set()
    for time in (7, *[1] * 80):
        model(random_ids(2, time), past_key_values=cache)
        kept = [cache.slot(index).keys for index in range(len(cache.layers))]
        places.add(tuple(keys.data_ptr() for keys in kept if keys is not None))
    assert len(places) == 1
    assert cache.nbytes == cache_bytes(model, 90, batch=2)


def test_several_devices_count_together(model: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = sys.modules[check_memory.__module__]
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    assert memory.free_beside(model) == 1000
    with devices():
        assert memory.free_beside(placed(MAKERS["ouro"](), {"model.layers.1": "standin:1"})) == 2000


def test_without_a_cache_nothing_needs_to_fit(model: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[check_memory.__module__], "free_bytes", lambda device: 0)
    found = model.generate(random_ids(1, 5), max_new_tokens=2, do_sample=False, use_cache=False)
    assert found.shape == (1, 7)


@pytest.mark.parametrize(
    ("family", "loops", "amateur", "strength"),
    [("huginn", 32, 8, 0.3), ("huginn", 3, 1, 0.3), ("ouro", 4, 2, 0.2), ("ouro", 8, 2, 0.2), ("hrm", 8, 2, 0.3)],
)
def test_presets(family: str, loops: int, amateur: int, strength: float) -> None:
    model = MAKERS[family]()
    model.set_num_loops(loops)
    found = preset(model)
    assert (found.amateur_loop, found.strength) == (amateur, strength)
    assert preset(MAKERS[family](), num_loops=loops) == found


KEPT = """
import ctypes, sys, torch
from loopcd.models.memory import keep_freed
if "keep" in sys.argv:
    keep_freed()
blocks = [torch.ones(2**21) for _ in range(24)]  # of 8 MiB
del blocks
told = ctypes.CDLL(None).mallinfo2
told.restype = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in "abcdefghij"]})
print(told().i)  # "fordblks": what is free, and was not given back
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")
def test_freed_memory_is_kept_unless_the_user_says_how_much() -> None:
    def kept(*arguments: str, **environment: str) -> int:
        command = [sys.executable, "-c", KEPT, *arguments]
        return int(subprocess.run(command, env=clean | environment, capture_output=True, check=True).stdout)

    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    assert kept("keep") > 24 * 2**23
    assert kept() < 8 * 2**23
    assert kept("keep", MALLOC_TRIM_THRESHOLD_="100000") < 8 * 2**23
    assert kept("keep", GLIBC_TUNABLES="glibc.malloc.trim_threshold=100000") < 8 * 2**23
