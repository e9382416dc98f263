"""Results folders as somebody else might hand them on: each is gone on with, or refused in a sentence that names the file."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from evaluation.fakes import contents, fake_run

Change = Callable[[Path], object]
LIMIT = 5


def line(name: str, text: str) -> Change:
    """Another second line of a file of lines."""

    def change(folder: Path) -> None:
        lines = (folder / name).read_text().split("\n")
        (folder / name).write_text("\n".join([lines[0], text, *lines[2:]]))

    return change


def sample(**changes: Any) -> Change:
    """Another field of the second sample; one that is None is left out."""

    def change(folder: Path) -> None:
        path = folder / "samples" / "greedy.jsonl"
        lines = path.read_text().split("\n")
        told = {name: value for name, value in (json.loads(lines[1]) | changes).items() if value is not None}
        path.write_text("\n".join([lines[0], json.dumps(told), *lines[2:]]))

    return change


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def grades(change: Callable[[dict[str, Any]], Any]) -> Change:
    def rewrite(folder: Path) -> None:
        path = folder / "grades" / "greedy.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return rewrite


def instead(name: str, make: Callable[[Path], object]) -> Change:
    """Something else than a file in this place."""

    def change(folder: Path) -> None:
        path = folder / name
        rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return change


NESTED = "[" * 100_000
SAMPLES, MANIFEST = "samples/greedy.jsonl", "manifest.json"
REFUSED: dict[str, tuple[Change, str]] = {
    "a line is a list": (line(SAMPLES, "[]"), SAMPLES),
    "a line is a number": (line(SAMPLES, "3"), SAMPLES),
    "a line is null": (line(SAMPLES, "null"), SAMPLES),
    "a line is nested": (line(SAMPLES, NESTED), SAMPLES),
    "a line is NUL": (line(SAMPLES, "\x00"), SAMPLES),
    "without id": (sample(id=None), SAMPLES),
    "without text": (sample(text=None), SAMPLES),
    "id is a list": (sample(id=["x"]), SAMPLES),
    "text is a number": (sample(text=3), SAMPLES),
    "text is half a character": (sample(text="\ud800"), SAMPLES),
    "tokens are texts": (sample(token_ids=["x"]), SAMPLES),
    "tokens are null": (sample(token_ids=[None]), SAMPLES),
    "tokens are an object": (sample(token_ids={}), SAMPLES),
    "loops is a text": (sample(loops="4"), SAMPLES),
    "loops is true": (sample(loops=True), SAMPLES),
    "a foreign item": (sample(id="steps/none"), SAMPLES),
    "timing without run": (text("timing.jsonl", '{"batch": 0, "tokens": 1, "seconds": 1}\n'), "timing.jsonl"),
    "timing of a negative time": (
        text("timing.jsonl", '{"run": "a", "batch": 0, "tokens": 1, "seconds": -1}\n'),
        "timing.jsonl",
    ),
    "timing is NaN": (text("timing.jsonl", '{"run": "a", "batch": 0, "tokens": 1, "seconds": NaN}\n'), "timing.jsonl"),
    "the manifest is a list": (text(MANIFEST, "[]"), MANIFEST),
    "the manifest is nested": (text(MANIFEST, NESTED), MANIFEST),
    "the manifest is empty": (text(MANIFEST, "{}"), "other settings"),
    "the settings are nested": (text(MANIFEST, '{"settings": ' + "[" * 900 + "]" * 900 + "}"), "run"),
    "the manifest is a folder": (instead(MANIFEST, Path.mkdir), MANIFEST),
    "the samples are a folder": (instead(SAMPLES, Path.mkdir), SAMPLES),
    "the samples are a pipe": (instead(SAMPLES, os.mkfifo), SAMPLES),
    "the samples' folder is a file": (instead("samples", Path.touch), "samples"),
    "the lock is a folder": (instead(".lock", Path.mkdir), ".lock"),
    "the report is a folder": (instead("results.md", Path.mkdir), "results.md"),
}
MENDED: dict[str, Change] = {
    "the last line is torn": lambda folder: os.truncate(folder / SAMPLES, (folder / SAMPLES).stat().st_size - 7),
    "the samples are empty": text(SAMPLES, ""),
    "the grades are torn": text("grades/greedy.json", '{"samples_sha256": "'),
    "the grades are empty": text("grades/greedy.json", ""),
    "the grades are a list": text("grades/greedy.json", "[]"),
    "the grades are nested": text("grades/greedy.json", NESTED),
    "the grades have no hash": grades(lambda told: {"grades": told["grades"]}),
    "the grades' hash is forged": grades(lambda told: {**told, "samples_sha256": "0" * 64}),
    "the grades' hash is a list": grades(lambda told: {**told, "samples_sha256": []}),
    "the grades are too few": grades(lambda told: {**told, "grades": told["grades"][1:]}),
    "no grades": grades(lambda told: {**told, "grades": []}),
    "the grades are numbers": grades(lambda told: {**told, "grades": [1] * LIMIT}),
    "the grades are texts": grades(lambda told: {**told, "grades": [{"strict": "yes", "flex": "no"}] * LIMIT}),
    "the grades lack a metric": grades(lambda told: {**told, "grades": [{"strict": True}] * LIMIT}),
    "cheating is a text": grades(lambda told: {**told, "grades": [{**each, "cheated": "no"} for each in told["grades"]]}),
    "a stale partial file": lambda folder: (folder / ".results.json.partial").write_text("half"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    fake_run(folder, limit=LIMIT)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_gone_on_with_is_named(whole: Path, tmp_path: Path, name: str) -> None:
    change, place = REFUSED[name]
    folder = copytree(whole, tmp_path / "run")
    change(folder)
    with pytest.raises(OSError) as caught:  # noqa: PT011 (its message is what is looked at)
        fake_run(folder, limit=LIMIT)
    assert str(folder) in str(caught.value) and place in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", MENDED)
def test_what_can_be_made_again_is(whole: Path, tmp_path: Path, name: str) -> None:
    folder = copytree(whole, tmp_path / "run")
    MENDED[name](folder)
    fake_run(folder, limit=LIMIT)
    assert contents(folder) == contents(whole)
