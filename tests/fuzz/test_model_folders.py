"""60 model folders as somebody might send them: each is loaded and run, or refused in a sentence; no code of theirs runs."""

import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from fuzz.judging import complaint
from random_models import one_thread
from tools import configure, save_model, tiny_huginn, tiny_ouro

__all__ = ["one_thread"]

Change = Callable[[Path], object]
NESTED = "[" * 100_000
HUGE = 10**18  # what cannot be had anywhere, so that nobody begins to make room for it


def config(**changes: Any) -> Change:
    return lambda folder: configure(folder, **changes)


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def fields(name: str, **changes: Any) -> Change:
    """Other fields of a JSON file of the folder."""

    def change(folder: Path) -> None:
        told = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**told, **changes}))

    return change


def weights(change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / "model.safetensors").write_bytes(change((folder / "model.safetensors").read_bytes()))


def header(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Another header of the weights' file."""

    def rewrite(raw: bytes) -> bytes:
        (length,) = struct.unpack("<Q", raw[:8])
        told = json.dumps(change(json.loads(raw[8 : 8 + length]))).encode()
        return struct.pack("<Q", len(told)) + told + raw[8 + length :]

    return weights(rewrite)


def first(told: dict[str, Any], **changes: Any) -> dict[str, Any]:
    name = next(name for name in told if name != "__metadata__")
    return {**told, name: {**told[name], **changes}}


def flipped(seed: int, name: str) -> Change:
    def change(folder: Path) -> None:
        chance, raw = random.Random(seed), bytearray((folder / name).read_bytes())
        for _ in range(chance.choice([1, 5, 50])):
            raw[chance.randrange(min(len(raw), 3000))] = chance.randrange(256)
        (folder / name).write_bytes(raw)

    return change


def index(content: str) -> Change:
    return text("model.safetensors.index.json", content)


def remote_code(folder: Path) -> None:
    """Python beside the model, which says that it is to be used."""
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nT = C = M = object\n")
    fields("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]}, tokenizer_class="T")(folder)
    configure(folder, auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})


class Harm:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def pickled(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(pickle.dumps(Harm(folder / "ran")))

    return change


FOLDERS: dict[str, Change] = {
    "as it was": lambda folder: None,
    "config: a list": text("config.json", "[]"),
    "config: nothing": text("config.json", ""),
    "config: nested": text("config.json", NESTED),
    "config: nested objects": text("config.json", '{"a":' * 100_000),
    "config: not UTF-8": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"),
    "config: empty": text("config.json", "{}"),
    "config: a folder": lambda folder: [(folder / "config.json").unlink(), (folder / "config.json").mkdir()],
    "model_type: a list": config(model_type=["ouro"]),
    "model_type: another": config(model_type="llama"),
    "model_type: null": config(model_type=None),
    "model_type: nested": config(model_type=[[[]]]),
    **{f"vocab_size: {value!r}": config(vocab_size=value) for value in (0, -1, "9", None, [], 1.5, HUGE)},
    **{f"hidden_size: {value!r}": config(hidden_size=value, n_embd=value) for value in (0, -4, "x", None, 33, HUGE)},
    **{f"heads: {value!r}": config(num_attention_heads=value, n_heads=value) for value in (0, -1, 3, "x")},
    **{f"loops: {value!r}": config(total_ut_steps=value, mean_recurrence=value) for value in (0, -1, "x", None, HUGE)},
    "layers: -1": config(num_hidden_layers=-1, n_layers_in_recurrent_block=-1),
    "rope_theta: nothing": config(rope_theta=0, rope_base=0),
    "rope: unknown": config(rope_scaling={"rope_type": "evil", "factor": "x"}),
    "context: -1": config(max_position_embeddings=-1, block_size=-1),
    "dtype: a class": config(dtype="__class__", torch_dtype="__class__"),
    "dtype: a number": config(dtype=3),
    "attention: a kernel of the hub": config(_attn_implementation="evil/kernel", attn_implementation="evil/kernel"),
    "activation: unknown": config(hidden_act="evil"),
    "eos: a text": config(eos_token_id="x", pad_token_id="y"),
    "eos: huge": config(eos_token_id=HUGE),
    "quantised": config(quantization_config={"quant_method": "evil"}),
    "weights: nothing": weights(lambda raw: b""),
    "weights: cut": weights(lambda raw: raw[: len(raw) // 2]),
    "weights: text": weights(lambda raw: b"hello"),
    "weights: a length beyond": weights(lambda raw: struct.pack("<Q", 2**63) + raw[8:]),
    "weights: a header of a list": header(lambda told: []),
    "weights: a shape beyond": header(lambda told: first(told, shape=[HUGE, HUGE])),
    "weights: another shape": header(lambda told: first(told, shape=[1], data_offsets=[0, 4])),
    "weights: a negative shape": header(lambda told: first(told, shape=[-1])),
    "weights: another dtype": header(lambda told: first(told, dtype="X9")),
    "weights: overlapping": header(lambda told: first(told, data_offsets=[0, 8])),
    "weights: none": header(lambda told: {}),
    "weights: a folder": lambda folder: [(folder / "model.safetensors").unlink(), (folder / "model.safetensors").mkdir()],
    "weights: of another place": lambda folder: (folder / "model.safetensors").rename(folder / "other.safetensors"),
    "weights: a pickle": pickled("pytorch_model.bin"),
    "weights: a pickle of that name": pickled("model.safetensors"),
    "index: a list": index("[]"),
    "index: nested": index(NESTED),
    "index: numbers": index('{"weight_map": {"a": 3}}'),
    "index: missing files": index(json.dumps({"weight_map": {f"w{n}": f"{n}.safetensors" for n in range(2000)}})),
    "index: another folder": index('{"weight_map": {"a": "../model.safetensors"}}'),
    "index: null": index('{"weight_map": null}'),
    "tokenizer: nothing": text("tokenizer.json", ""),
    "tokenizer: nested": text("tokenizer.json", NESTED),
    "tokenizer: a list": text("tokenizer.json", "[]"),
    "tokenizer: no model": fields("tokenizer.json", model=None),
    "tokenizer: another class": fields("tokenizer_config.json", tokenizer_class="os.system"),
    "tokenizer: settings nested": text("tokenizer_config.json", NESTED),
    "tokenizer: tokens of another kind": fields("tokenizer_config.json", eos_token=3, pad_token=["x"]),
    "generation: nested": text("generation_config.json", NESTED),
    "generation: of another kind": text("generation_config.json", '{"eos_token_id": "x", "max_length": []}'),
    "code beside it": remote_code,
    **{f"flipped {seed}": flipped(seed, "model.safetensors") for seed in range(3)},
    **{f"flipped config {seed}": flipped(seed, "config.json") for seed in range(4)},
    **{f"flipped tokenizer {seed}": flipped(seed, "tokenizer.json") for seed in range(3)},
}


@pytest.fixture(scope="session")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("models")
    return [save_model(base / "huginn", tiny_huginn(2)), save_model(base / "ouro", tiny_ouro(2))]


@pytest.mark.parametrize("name", FOLDERS)
def test_every_folder_is_loaded_or_refused(name: str, wholes: list[Path], tmp_path: Path) -> None:
    family = list(FOLDERS).index(name) % 2
    folder = copytree(wholes[family], tmp_path / "model")
    FOLDERS[name](folder)
    lines = (["models", str(folder)], ["generate", "hi", "--model", str(folder), "--max-new-tokens", "1"])
    found = [each for each in (complaint(line, stdin="y\ny\ny\n") for line in lines) if each is not None]
    assert found == []
    assert not (folder / "ran").exists(), "code of the folder was run"
