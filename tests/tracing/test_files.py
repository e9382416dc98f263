"""Traces on disk: they come back equal, one at a time, and a broken file says what is wrong with it."""

import struct
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hand_traces import hand_trace
from loopcd.models import LoopedModel
from loopcd.tracing import TraceWriter, Written, files, read_traces, trace_texts
from tools import random_ids

LOGITS = [[[0.0, 2.0, 1.0], [0.0, 4.0, 1.0]], [[5.0, 0.0, 1.0], [1.0, 3.0, 0.0]]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "traces.npz"
    with TraceWriter(path) as writer:
        for number in range(3):
            writer.add(hand_trace(LOGITS, extra={"number": number}))
    return path


def test_they_come_back_equal(model: LoopedModel, tokenizer: Any, tmp_path: Path) -> None:
    items = [
        Written("é€" * p, random_ids(1, n, seed=p)[0].tolist(), extra={"gold": "4", "seen": [1, None]})
        for p, n in [(1, 9), (4, 3)]
    ]
    traces = list(trace_texts(model, tokenizer, items))
    traces.append(replace(traces[0], prompt="a lone half \ud83d", init_seed=7))
    with TraceWriter(tmp_path / "traces.npz") as writer:
        for trace in traces:
            writer.add(trace)
    back = read_traces(tmp_path / "traces.npz")
    assert list(back) == traces and writer.written == 3
    assert back[-1] == traces[-1] and back[1:] == traces[1:] and len(back) == 3
    back.close()


def test_numpy_reads_it_as_well(file: Path) -> None:
    with np.load(file, allow_pickle=False) as arrays:
        assert arrays["000001/loops"].shape == (5, 2, 2) and arrays["000001/tokens"].dtype == np.int32


def test_each_is_loaded_when_it_is_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = read_traces(file)
    read: list[str] = []
    original = traces._array
    monkeypatch.setattr(traces, "_array", lambda name: read.append(name) or original(name))
    assert len(traces) == 3 and read == []
    assert traces[2].extra == {"number": 2} and {name.partition("/")[0] for name in read} == {"000002"}
    with pytest.raises(IndexError):
        traces[3]


@pytest.mark.parametrize("arrays", [8, 9, 11, 15])  # a trace has 8
def test_what_was_written_before_an_interruption_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: int) -> None:
    path, write, written = tmp_path / "traces.npz", np.lib.format.write_array, list[Any]()

    def interrupted(member: Any, array: Any, **options: Any) -> None:
        if len(written) == arrays:
            member.write(b"half of it")
            raise KeyboardInterrupt
        written.append(write(member, array, **options))

    monkeypatch.setattr(np.lib.format, "write_array", interrupted)
    with TraceWriter(path) as writer:
        writer.add(hand_trace(LOGITS))
        with pytest.raises(KeyboardInterrupt):
            writer.add(hand_trace(LOGITS))
    assert list(read_traces(path)) == [hand_trace(LOGITS)]


def test_a_new_writer_begins_anew(file: Path) -> None:
    with TraceWriter(file):
        pass
    assert len(read_traces(file)) == 0


def test_size(model: LoopedModel, tmp_path: Path) -> None:
    """A few hundred bytes for each token and loop at most, also where dozens of tokens are plausible."""
    items = [Written([1, 2, 3], random_ids(1, 40, seed=seed)[0].tolist()) for seed in range(4)]
    for plausibility in (0.1, 1e-4):
        with TraceWriter(tmp_path / "traces.npz") as writer:
            for trace in trace_texts(model, None, items, plausibility=plausibility):
                writer.add(trace)
        assert (tmp_path / "traces.npz").stat().st_size / (4 * 40 * model.num_loops) < 350


def test_only_json_goes_along(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "traces.npz") as writer:
        for extra in ({"set": {1, 2}}, {"nan": float("nan")}):
            with pytest.raises(ValueError, match="only what JSON can hold"):
                writer.add(hand_trace(LOGITS, extra=extra))
        writer.add(hand_trace(LOGITS))
    assert len(read_traces(tmp_path / "traces.npz")) == 1


# Broken files


def broken(path: Path, *parts: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        list(read_traces(path))
    assert [part for part in (str(path), *parts) if part not in str(caught.value)] == [], str(caught.value)


def rewritten(file: Path, change: Any) -> Path:
    """The file with some members left out (None) or replaced."""
    with zipfile.ZipFile(file) as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(file, "w") as target:
        for name, content in change(members).items():
            target.writestr(name, content)
    return file


def test_not_a_file_of_traces(tmp_path: Path, file: Path) -> None:
    (tmp_path / "text").write_text("hello")
    broken(tmp_path / "text", "not a file of traces")
    broken(rewritten(file, lambda members: {"weights.npy": b""}), "not a file of traces", "weights.npy")
    with pytest.raises(FileNotFoundError):
        read_traces(tmp_path / "missing")


def test_cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])
    broken(file, "not written to its end")


def test_a_flipped_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[200] ^= 0xFF
    file.write_bytes(content)
    broken(file, "trace 0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {k: v for k, v in m.items() if k != "000001/loops.npy"}, "trace 1"),
        (lambda m: {k: v for k, v in m.items() if not k.startswith("000001")}, "not a file of traces"),
        (lambda m: {**m, "000002/loops.npy": m["000002/tokens.npy"]}, "trace 2"),
        (lambda m: {**m, "000000/loops.npy": b"nothing"}, "trace 0"),
        (lambda m: {**m, "000000/facts.npy": m["000000/prompt_ids.npy"]}, "trace 0"),
        (lambda m: {k: v.replace(b'"version": 1', b'"version": 2') for k, v in m.items()}, "version 2"),
        (lambda m: {k: v.replace(b'"text"', b'"tixt"') for k, v in m.items()}, "text"),
    ],
)
def test_broken_inside(file: Path, change: Any, message: str) -> None:
    broken(rewritten(file, change), message)


def test_no_pickle_is_ever_read(file: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return print, ("harm",)

    with zipfile.ZipFile(file, "w") as target, target.open("000000/facts.npy", "w") as member:
        np.lib.format.write_array(member, np.array([Harm()], dtype=object), allow_pickle=True)
    broken(file, "pickle")


# Files that unpack to more than they seem


def test_a_trace_that_unpacks_to_too_much_is_refused_unread(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 3000)
    broken(rewritten(file, lambda m: {**m, "000000/loops.npy": bytes(4000)}), "unpacked it is larger than 0.003 MB")
    monkeypatch.setattr(files, "LARGEST_FACTS", 100)
    broken(file, "unpacked it is larger than 0.0001 MB")


def test_no_more_is_unpacked_than_a_member_says(file: Path) -> None:
    """A member that says it has 100 bytes and has 300 million: asked for all of it, zipfile would unpack them."""
    size = 300_000_000
    with zipfile.ZipFile(file) as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(name, bytes(size) if name == "000000/loops.npy" else content)
    lying = file.read_bytes().replace(struct.pack("<I", size), struct.pack("<I", 100))
    file.write_bytes(lying)
    tracemalloc.start()
    try:
        broken(file, "trace 0")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_what_is_packed_in_an_unusual_way_is_refused(file: Path) -> None:
    with zipfile.ZipFile(file) as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as target:
        for name, content in members.items():
            target.writestr(name, content)
    broken(file, "packed in another way")
