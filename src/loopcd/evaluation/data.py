"""Data files: read, fingerprinted, compared with the fingerprints of the files that the tasks were made for."""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

log = logging.getLogger("loopcd")

# the files that the tasks read with `--data DIR`, packed or not, and the sha256 of what is expected in them (of worked
# examples, which users write down themselves, of their text in a prompt)
KNOWN = {
    "gsm8k_test.jsonl": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    "gsm8k_train.jsonl": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "math500.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
    "strategyqa_train_2290.jsonl": "cf09fa5c3883b977ddbc00f953fed105abfaf7c217ef1bcbf314262ec75e1699",
    "strategyqa_6shot_cot_exemplars.json": "0d98ea3f5f591c963ce729591e95bbfc74ed01ff1d30b029cd7a85a0b29971d4",
    "HumanEvalPlus-v0.1.10.jsonl": "42526ec0e7d5f3ee0b06d6ced98f8c8bae3d76519151bfb3d36f79010645bd7f",
    "MbppPlus-v0.2.0.jsonl": "b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad",
}


# what the tasks read of each record, by the beginning of the file's name
_PROGRAM: dict[str, type] = dict.fromkeys(("task_id", "prompt", "entry_point", "canonical_solution"), str)
FIELDS: dict[str, dict[str, type]] = {
    "gsm8k": {"question": str, "answer": str},
    "math500": {"problem": str, "solution": str},
    "strategyqa_train": {"qid": str, "question": str, "answer": bool, "facts": list},
    "HumanEvalPlus": _PROGRAM,
    "MbppPlus": _PROGRAM,
}
LARGEST = 1_000_000_000  # bytes of a file, unpacked


@dataclass(frozen=True)
class DataFile:
    """What was really read. `known` is False when the file differs from the one that the task was made for."""

    source: str
    sha256: str
    known: bool | None  # None: nothing to compare with (from the hub)
    records: int

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def read_lines(folder: Path, name: str) -> tuple[list[dict[str, Any]], DataFile]:
    """The records of a JSON lines file, packed (NAME.gz) or not. Other contents than the known: a warning."""
    if not folder.is_dir():
        raise ValueError(f"--data {folder}: there is no such folder")
    plain = name.removesuffix(".gz")
    path = next((folder / each for each in (name, plain, f"{plain}.gz") if (folder / each).is_file()), None)
    if path is None:
        raise ValueError(f"{folder} has no {name}: that is the file this task reads")
    raw = path.read_bytes()
    try:
        text = _unpacked(raw) if path.suffix == ".gz" else raw
        records = [json.loads(line) for line in text.decode().split("\n") if line.strip()]
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"{path} does not hold JSON lines: {error}") from error
    _check_records(path, records)
    return records, fingerprint(path.name, raw, len(records), text)


def _unpacked(raw: bytes) -> bytes:
    with gzip.open(BytesIO(raw)) as packed:
        text = packed.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"unpacked it is larger than {LARGEST / 1e6:g} MB")
    return text


def _check_records(path: Path, records: list[Any]) -> None:
    """Each record has the fields that the task reads."""
    needed = next((fields for name, fields in FIELDS.items() if path.name.startswith(name)), {})
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise ValueError(f"{path}, record {number} is no JSON object")
        wrong = next((name for name, kind in needed.items() if not isinstance(record.get(name), kind)), None)
        if wrong is not None:
            raise ValueError(f"{path}, record {number}: `{wrong}` should be a {needed[wrong].__name__}")
    if not records:
        raise ValueError(f"{path} holds no record")


def fingerprint(name: str, raw: bytes, records: int, held: bytes, stands_for: str | None = None) -> DataFile:
    """A file is known by what it holds, however that is packed; one that a user named, by what it `stands_for`."""
    plain = name.removesuffix(".gz")
    digest, wanted = sha256(held).hexdigest(), KNOWN.get(stands_for or plain)
    if digest != wanted:
        expected = f", not the known {wanted[:12]}…" if wanted else ", which is not a known file"
        log.warning("%s has sha256 %s…%s: its scores cannot be compared with others'", plain, digest[:12], expected)
    return DataFile(name, sha256(raw).hexdigest(), digest == wanted, records)


def fingerprint_records(source: str, records: Sequence[Any]) -> DataFile:
    """Of records that came from the hub: the hash is of their JSON, since there is no single file."""
    lines = "\n".join(json.dumps(record, sort_keys=True, default=str) for record in records)
    return DataFile(source, sha256(lines.encode()).hexdigest(), None, len(records))


def from_hub(path: str, name: str | None, split: str) -> tuple[list[dict[str, Any]], DataFile]:
    """A split of a data set of the hub, by `datasets`."""
    import datasets

    try:
        with _offline_if_it_is(path):
            loaded = datasets.load_dataset(path, name, split=split)
    except Exception as error:  # datasets raises many kinds, its offline errors among them
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"the data set {path} could not be had from the hub ({reason}): give the folder of its files by --data DIR"
        ) from error
    records = [dict(record) for record in loaded]  # pyright: ignore[reportArgumentType]
    return records, fingerprint_records(f"hub:{path}{f'/{name}' if name else ''}:{split}", records)


@contextmanager
def _offline_if_it_is(path: str) -> Iterator[None]:
    """Where the hub does not answer once, `datasets` shall look at its cache at once instead of asking six times."""
    import datasets.config
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        HfApi().dataset_info(path, timeout=10)
    except HfHubHTTPError:
        pass  # it answered: `datasets` will say what it said
    except Exception:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def shuffled_rank(key: str) -> str:
    """Sorting by this shuffles in the same way everywhere, whatever else is in the set."""
    return sha256(f"loopcd/{key}".encode()).hexdigest()


def item_number(key: str) -> int:
    """A number that an item keeps whatever else is run with it: what is drawn for the item follows from it."""
    return int(shuffled_rank(f"number/{key}")[:15], 16)
