"""50 files that say they hold traces: each is shown or refused in a sentence, and none spoils the viewer for the others."""

import json
import random
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz.judging import complaint
from hand_traces import hand_trace
from loopcd.evaluation.engine import LocalEngine
from loopcd.lens.server import Viewer
from loopcd.tracing import TraceWriter
from random_models import one_thread
from tools import byte_tokenizer, tiny_huginn

__all__ = ["one_thread"]

LOGITS = [[[0.0, 2.0, 1.0], [0.0, 4.0, 1.0]], [[5.0, 0.0, 1.0], [1.0, 3.0, 0.0]]]
Members = dict[str, bytes]


def fact(**changes: Any) -> Callable[[Members], Members]:
    """Other facts of the first trace; a text stands for JSON as it is."""

    def change(members: Members) -> Members:
        facts = json.loads(array_of(members["000000/facts.npy"]).tobytes())
        told = {**facts, **{name: value for name, value in changes.items() if not isinstance(value, Raw)}}
        text = json.dumps(told)
        for name, value in changes.items():
            if isinstance(value, Raw):
                text = json.dumps({**told, name: "RAW"}).replace('"RAW"', value.text)
        return {**members, "000000/facts.npy": npy(np.frombuffer(text.encode(), np.uint8))}

    return change


class Raw:
    def __init__(self, text: str) -> None:
        self.text = text


def npy(array: np.ndarray) -> bytes:
    out = BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=False)
    return out.getvalue()


def array_of(raw: bytes) -> np.ndarray:
    return np.lib.format.read_array(BytesIO(raw), allow_pickle=False)


def member(name: str, content: Callable[[bytes], bytes]) -> Callable[[Members], Members]:
    return lambda members: {**members, f"000000/{name}.npy": content(members[f"000000/{name}.npy"])}


def header(text: str) -> Callable[[bytes], bytes]:
    """An npy header that says this."""
    padded = text.encode().ljust(117) + b"\n"
    return lambda raw: b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + raw[128:]


INSIDE: dict[str, Callable[[Members], Members]] = {
    "method is null": fact(method=None),
    "method is a number": fact(method=3),
    "extra is a list": fact(extra=[]),
    "extra is a text": fact(extra="x"),
    "gold is NaN": fact(extra=Raw('{"gold": NaN}')),
    "gold is infinite": fact(extra=Raw('{"gold": 1e999}')),
    "extra is nested": fact(extra=Raw('{"a":' * 900 + "1" + "}" * 900)),
    "extra is nested deeper": fact(extra=Raw("[" * 100_000 + "]" * 100_000)),
    "correct is a text": fact(extra={"correct": "yes", "item": {"a": 1}, "gold": [[]]}),
    "strength is infinite": fact(strength=Raw("Infinity")),
    "strength is a text": fact(strength="0.3"),
    "strength is true": fact(strength=True),
    "pieces is a text": fact(pieces="ab"),
    "pieces are numbers": fact(pieces=[1, 2]),
    "pieces is null": fact(pieces=None),
    "token_texts is a list": fact(token_texts=["a"]),
    "token_texts of a word": fact(token_texts={"a": "b"}),
    "token_texts of numbers": fact(token_texts={"1": 2}),
    "num_loops is a text": fact(num_loops="2"),
    "num_loops is huge": fact(num_loops=10**30),
    "amateur_loop is a list": fact(amateur_loop=[1]),
    "prompt is an object": fact(prompt={}),
    "model is a list": fact(model=["x"]),
    "init_seed is a text": fact(init_seed="x"),
    "a number of 5000 digits": fact(init_seed=Raw("9" * 5000)),
    "facts are a list": member("facts", lambda _: npy(np.frombuffer(b"[]", np.uint8))),
    "facts are no JSON": member("facts", lambda _: npy(np.frombuffer(b"{", np.uint8))),
    "facts are no UTF-8": member("facts", lambda _: npy(np.frombuffer(b"\xff\xfe", np.uint8))),
    "facts are floats": member("facts", lambda _: npy(np.zeros(3))),
    "a header that is no Python": member("tokens", header("{'descr': '<i4', (((")),
    "a header of another kind": member("tokens", header("[1, 2, 3]")),
    "a header that does not end": member("tokens", header("{'descr': '<i4', 'shape': (")),
    "a header of nested lists": member("tokens", header("(" * 117)),
    "objects": member("tokens", header("{'descr': '|O', 'fortran_order': False, 'shape': (5, 2), }")),
    "an absurd shape": member("tokens", header("{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000, 5), }")),
    "a negative shape": member("tokens", header("{'descr': '<i4', 'fortran_order': False, 'shape': (-5, 2), }")),
    "no rows": member("tokens", lambda _: npy(np.zeros((5, 0), np.int32))),
    "one number": member("tokens", lambda _: npy(np.array(3, np.int32))),
    "huge counts": member("tokens", lambda _: npy(np.full((5, 2), 2**31 - 1, np.int32))),
    "negative ids": member("tokens", lambda _: npy(np.full((5, 2), -7, np.int32))),
    "not a number": member("loops", lambda _: npy(np.full((5, 2, 2), np.nan, np.float32))),
    "an empty member": member("loops", lambda _: b""),
}


def packed(members: Members, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return out.getvalue()


def encrypted(whole: bytes) -> bytes:
    """The flag of encryption in every header."""
    raw = bytearray(whole)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = raw.find(mark)
        while at >= 0:
            raw[at + place] |= 1
            at = raw.find(mark, at + 4)
    return bytes(raw)


def relabelled(whole: bytes, kind: int) -> bytes:
    """Another way of packing in every header than the one that was used."""
    raw = bytearray(whole)
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = raw.find(mark)
        while at >= 0:
            raw[at + place] = kind
            at = raw.find(mark, at + 4)
    return bytes(raw)


def flipped(whole: bytes, seed: int) -> bytes:
    chance, raw = random.Random(seed), bytearray(whole)
    for _ in range(chance.choice([1, 4, 40])):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw[: len(raw) - chance.choice([0, 0, 0, 1, 30])])


def members_of(whole: bytes) -> Members:
    with zipfile.ZipFile(BytesIO(whole)) as source:
        return {name: source.read(name) for name in source.namelist()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "traces.npz"
    with TraceWriter(path) as writer:
        writer.add(hand_trace(LOGITS, extra={"gold": 1}))
        writer.add(hand_trace(LOGITS, method="loopcd"))
    return path.read_bytes()


@pytest.fixture(scope="module")
def viewer() -> Viewer:
    return Viewer(LocalEngine(tiny_huginn(), byte_tokenizer(), "tiny-random"))


def files(whole: bytes) -> dict[str, bytes]:
    members = members_of(whole)
    made = {name: packed(change(members)) for name, change in INSIDE.items()}
    made |= {
        "encrypted": encrypted(whole),
        "an unknown packing": relabelled(whole, 97),
        "bzip2": packed(members, zipfile.ZIP_BZIP2),
    }
    made |= {"nothing": b"", "an empty archive": packed({}), "a folder in it": packed({"000000/": b""})}
    return made | {f"flipped {seed}": flipped(whole, seed) for seed in range(12)}


def test_every_file_is_shown_or_refused(whole: bytes, viewer: Viewer, tmp_path: Path) -> None:
    made = files(whole)
    assert len(made) >= 50
    path, found = tmp_path / "sent.npz", []
    for name, content in made.items():
        path.write_bytes(content)
        found += [
            f"{name}: {each}" for each in [complaint(["lens", str(path), "--export", str(tmp_path / "page.html")])] if each
        ]
        try:
            viewer.read(path, name)
        except ValueError:
            pass
        except Exception as error:
            found.append(f"{name}: the viewer raised {type(error).__name__}: {error}")
        json.dumps(viewer.page_data(), allow_nan=False)  # what it took can be shown
        json.dumps([example.payloads() for example in viewer.examples], allow_nan=False)
    assert found == []


def test_the_good_file_is_shown(whole: bytes, viewer: Viewer, tmp_path: Path) -> None:
    (tmp_path / "sent.npz").write_bytes(whole)
    assert len(viewer.read(tmp_path / "sent.npz", "sent.npz")["examples"]) == 1
