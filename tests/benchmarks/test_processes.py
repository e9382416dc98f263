"""What runs in processes of its own, or needs a compiler."""

import json
import os
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks import memory
from benchmarks.compiled import bench_compiled
from benchmarks.memory import bench_load, bench_memory, resident
from loopcd.bench.tables import tables
from loopcd.models import HuginnConfig
from processes import printed
from tools import tiny_ouro

pytestmark = pytest.mark.slow


def forked(script: str, *arguments: str) -> dict[str, Any]:
    """As `memory._apart`, in a process that need not import everything again."""
    return json.loads(printed(script, *arguments))


def test_what_a_process_of_its_own_prints_is_read() -> None:
    script = "import json, os, sys; print(json.dumps({'given': sys.argv[1:], 'process': os.getpid()}))"
    told = memory._apart(script, "a", "b")
    assert told["given"] == ["a", "b"] and told["process"] != os.getpid()


def test_loading_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_apart", forked)
    config = HuginnConfig(n_embd=64, n_heads=4, intermediate_size=64, vocab_size=128, mean_recurrence=2)
    told = bench_load(config, lambda _: None)
    assert told["checkpoint_bytes"] > 4 * 64 * 128
    assert told["peak_bytes"] is None or told["peak_bytes"] > 0


def test_generating_is_measured_plain_and_drafted(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "METHODS", ("loopcd",))
    monkeypatch.setattr(memory, "_apart", forked)
    found = bench_memory(folders[:1], (1,), 4, lambda _: None, contexts=(60,))
    if resident("VmHWM") is None:
        assert found == {}
        return
    for told in found[folders[0]]["batch 1, context 60"].values():
        assert told["drafted_over_plain"] > 0.5 and 0.95 < told["cache_over_plain"] < 1.05
        assert told["plain"]["peak_bytes"] >= told["plain"]["loaded_bytes"]
    assert [table.title for table in tables({"memory": found})] == ["Memory of drafting"]


def test_a_process_that_fails_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_GENERATOR", "raise SystemExit('a line before\\nout of luck')")  # without the imports
    if resident("VmHWM") is not None:
        with pytest.raises(ValueError, match="measuring some-model in a process of its own failed: out of luck"):
            bench_memory(["some-model"], (1,), 4, lambda _: None)


def test_compiling_is_measured_or_its_failure_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    found = bench_compiled({"tiny": tiny_ouro()}, (1,), 1, 2, lambda _: None)
    assert {"start_up_seconds", "compiled/plain"} == set(found["tiny"]["1"]) or "failed" in found["tiny"]["1"]
    assert tables({"compile": found})[0].rows[0][0] == "tiny, batch 1"
