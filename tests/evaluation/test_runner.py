"""The runner: what it keeps, how it goes on, and what it refuses."""

import errno
import json
import os
import platform
import random
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree

import pytest

from evaluation.fakes import FakeEngine, contents, fake_run
from loopcd.evaluation.plan import batches
from loopcd.evaluation.store import StoreError, open_store
from loopcd.tracing import writing


def in_child(work: Callable[[], object]) -> int:
    """Fork; the child does the work and ends with status 0, or 1 if that raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def uninterrupted(tmp_path: Path) -> dict[str, bytes]:
    fake_run(tmp_path / "whole")
    return contents(tmp_path / "whole")


# -- what is kept -------------------------------------------------------------------------------------------------------


def test_a_run_leaves_manifest_samples_and_tables(tmp_path: Path) -> None:
    made = fake_run(tmp_path / "run", limit=10)
    names = {path.name for path in made.folder.iterdir()}
    assert {"manifest.json", "samples", "grades", "results.json", "results.md", "results.csv", "throughput.json"} <= names
    lines = [json.loads(line) for line in (made.folder / "samples" / "loopcd.jsonl").read_text().split("\n") if line]
    assert len({line["id"] for line in lines}) == len(lines) == 10
    settings = json.loads((made.folder / "manifest.json").read_text())["settings"]
    assert settings["task"]["max_new_tokens"] == 112
    assert settings["task"]["data"][0]["sha256"]
    assert settings["methods"]["loopcd"]["plausibility"] == 0.1


def test_prompts_that_the_model_cannot_read_leave_no_folder(tmp_path: Path) -> None:
    class Short(FakeEngine):
        def lengths(self, prompts: Sequence[str]) -> list[int]:
            raise ValueError("the longest prompt of this task has 600 tokens")

    with pytest.raises(ValueError, match="600 tokens"):
        fake_run(tmp_path / "run", engine=Short())
    assert not (tmp_path / "run").exists()


def test_batches_go_from_long_to_short() -> None:
    assert batches([3, 9, 9, 1, 5], 2) == [[1, 2], [4, 0], [3]]


def test_a_finished_run_is_not_run_again(tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    engine = FakeEngine()
    fake_run(tmp_path / "whole", engine=engine)
    assert engine.calls == []
    assert contents(tmp_path / "whole") == uninterrupted


def test_methods_take_turns_batch_by_batch(tmp_path: Path) -> None:
    engine = FakeEngine()
    fake_run(tmp_path / "run", engine=engine, limit=8)
    asked = [request.numbers for _, request, _ in engine.calls]
    assert len(set(asked)) == 2 and asked[0::2] == asked[1::2] and {len(numbers) for numbers in asked} == {4}


def test_seeds_reach_the_engine_and_make_an_interval_over_runs(tmp_path: Path) -> None:
    engine = FakeEngine()
    made = fake_run(tmp_path / "run", engine=engine, seeds=(3, 5))
    assert {request.seed for _, request, _ in engine.calls} == {3, 5}
    assert sorted(path.name for path in (made.folder / "samples").iterdir()) == [
        f"{method}.seed{seed}.jsonl" for method in ("greedy", "loopcd") for seed in (3, 5)
    ]
    assert len(made.results.methods[0].by_seed["strict"]) == 2


# -- going on -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["greedy", "loopcd"])
def test_cut_off_at_any_byte_it_goes_on_to_the_same_files(tmp_path: Path, uninterrupted: dict[str, bytes], run: str) -> None:
    whole = uninterrupted[f"samples/{run}.jsonl"]
    for cut in sorted({0, 1, len(whole) - 1, *random.Random(0).sample(range(len(whole)), 6)}):
        folder = copytree(tmp_path / "whole", tmp_path / f"cut{cut}")
        (folder / "samples" / f"{run}.jsonl").write_bytes(whole[:cut])
        for name in ("results.json", "results.md", "results.csv"):
            (folder / name).unlink()
        fake_run(folder)
        assert contents(folder) == uninterrupted


def test_killed_at_twenty_random_moments_it_goes_on_to_the_same_files(tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    def run(folder: Path) -> int:
        return in_child(lambda: fake_run(folder, seconds=0.005))

    begun = time.monotonic()
    assert status_of(run(tmp_path / "timed")) == 0
    duration, chance, left = time.monotonic() - begun, random.Random(0), set[int]()
    for folder in (tmp_path / f"killed{number}" for number in range(5)):
        for _ in range(4):
            child = run(folder)
            time.sleep(chance.uniform(0.0, duration / 2))
            os.kill(child, signal.SIGKILL)
            status_of(child)
            left.add(sum(path.read_bytes().count(b"\n") for path in folder.glob("samples/*")))
        assert status_of(run(folder)) == 0
        assert contents(folder) == uninterrupted
    assert left - {0, 46}, "no kill came while there was something to do"


def test_grading_is_redone_when_the_samples_changed(tmp_path: Path) -> None:
    made = fake_run(tmp_path / "run", limit=8)
    path = made.folder / "grades" / "greedy.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "samples_sha256": "of others", "grades": []}))
    fake_run(tmp_path / "run", limit=8)
    assert json.loads(path.read_text()) == stored


# -- refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"limit": 9}, "task.items"),
        ({"max_new_tokens": 50}, "task.max_new_tokens was 112 and is now 50"),
        ({"methods": "greedy,loopcd:strength=0.2"}, "methods.loopcd"),
        ({"methods": "greedy"}, "methods.loopcd"),
        ({"batch_size": 5}, "model.batch_size was 4 and is now 5"),
        ({"seeds": (0,)}, "seeds was not set and is now [0]"),
        ({"temperature": 0.5}, "temperature was 0.0 and is now 0.5"),
    ],
)
def test_a_changed_setting_is_refused_and_named(tmp_path: Path, change: dict[str, object], named: str) -> None:
    fake_run(tmp_path / "run", limit=8)
    before = contents(tmp_path / "run")
    with pytest.raises(StoreError) as caught:
        fake_run(tmp_path / "run", **{"limit": 8, **change})  # pyright: ignore[reportArgumentType]
    assert named in str(caught.value)
    assert contents(tmp_path / "run") == before


def test_another_version_of_a_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(tmp_path / "run", limit=8)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["versions"]["python"] == platform.python_version()
    monkeypatch.setattr("loopcd.evaluation.evaluate.library_versions", lambda: {"loopcd": "9.9"})
    with pytest.raises(StoreError, match=r"versions\.loopcd was '\S+' and is now '9\.9'"):
        fake_run(tmp_path / "run", limit=8)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "run"), pytest.raises(StoreError, match=f"another run .process {os.getpid()}. is at work"):
        fake_run(tmp_path / "run")
    fake_run(tmp_path / "run")


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    def hold() -> None:
        with open_store(tmp_path / "run"):
            time.sleep(60)

    child = in_child(hold)
    while not (tmp_path / "run" / ".lock").exists() or not (tmp_path / "run" / ".lock").read_text():
        time.sleep(0.01)
    with pytest.raises(StoreError, match=f"process {child}"):
        fake_run(tmp_path / "run")
    os.kill(child, signal.SIGKILL)
    status_of(child)
    fake_run(tmp_path / "run")


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"not empty and holds no run of loopcd .thesis\.txt"):
        fake_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(("text", "said"), [("{", "line 2 is damaged"), ("TWICE", "stands there twice")])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    made = fake_run(tmp_path / "run", limit=8)
    path = made.folder / "samples" / "greedy.jsonl"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[0] if text == "TWICE" else text, *lines[2:]]))
    with pytest.raises(StoreError, match=said):
        fake_run(tmp_path / "run", limit=8)


def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    """As another user than root, whom nothing is read-only for."""
    folder = tmp_path / "run"
    fake_run(folder, limit=8)
    before = contents(folder)
    (folder / "results.md").unlink()
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    folder.chmod(0o555)
    (folder / ".lock").chmod(0o444)

    def as_somebody() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        with pytest.raises(StoreError, match=r"Permission denied; nothing can be written there"):
            fake_run(folder, limit=8)
        with pytest.raises(StoreError, match=r"Permission denied; nothing can be written there"):
            fake_run(folder / "below", limit=8)

    status = status_of(in_child(as_somebody))
    folder.chmod(0o755)
    assert status == 0
    assert {**before, "results.md": b""} == {**contents(folder), "results.md": b""}


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    """A limit on the size of files stands for the full disk: a write stops in the middle of a line."""
    size = len(uninterrupted["samples/greedy.jsonl"]) // 2

    def with_little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        with pytest.raises(StoreError, match=r"File too large; the finished items are kept: make room"):
            fake_run(tmp_path / "run")

    assert status_of(in_child(with_little_room)) == 0
    torn = (tmp_path / "run" / "samples" / "greedy.jsonl").read_bytes()
    assert len(torn) == size
    assert uninterrupted["samples/greedy.jsonl"].startswith(torn)
    fake_run(tmp_path / "run")
    assert contents(tmp_path / "run") == uninterrupted


def test_no_space_left_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "append", full)
    with pytest.raises(StoreError, match=r"greedy\.jsonl: No space left on device; the finished items are kept"):
        fake_run(tmp_path / "run")
