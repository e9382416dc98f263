"""Results folders with links in them: a folder that was received overwrites nothing of whoever goes on with it."""

from pathlib import Path

import pytest

from evaluation.fakes import FakeEngine, fake_run
from loopcd.evaluation.plan import MethodSpec
from loopcd.evaluation.store import StoreError, open_store
from loopcd.evaluation.sweep import sweep
from loopcd.evaluation.task import TaskOptions
from loopcd.evaluation.tasks import make_task


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


def replaced(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize(
    "name",
    [
        *(".lock", "manifest.json", "samples/greedy.jsonl", "timing.jsonl", "grades/greedy.json"),
        *("results.json", "results.md", "results.csv", "throughput.json"),
    ],
)
def test_a_link_among_the_files_is_refused_and_named(tmp_path: Path, victim: Path, name: str) -> None:
    fake_run(tmp_path / "run", limit=4)
    replaced(tmp_path / "run" / name, victim)
    with pytest.raises(StoreError, match=r"a symbolic link, which is never followed|not empty and holds no run") as caught:
        fake_run(tmp_path / "run", limit=4)
    assert str(tmp_path / "run") in str(caught.value)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["manifest.json", "results.json", "results.md", "results.csv", "throughput.json"])
def test_a_link_in_place_of_a_partial_file_is_not_followed(tmp_path: Path, victim: Path, name: str) -> None:
    if name != "manifest.json":
        fake_run(tmp_path / "run", limit=4)
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / f".{name}.partial").symlink_to(victim)
    fake_run(tmp_path / "run", limit=4)
    assert victim.read_text() == "mine" and not (tmp_path / "run" / name).is_symlink()


@pytest.mark.parametrize("name", ["samples", "grades"])
def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    fake_run(tmp_path / "run", limit=4)
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "run" / name).iterdir():
        path.unlink()
    (tmp_path / "run" / name).rmdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="never followed"):
        fake_run(tmp_path / "run", limit=4)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_torn_line_behind_a_link_is_not_cut_off(tmp_path: Path) -> None:
    """Its target would have been shortened to its last whole line."""
    fake_run(tmp_path / "run", limit=4)
    notes = tmp_path / "notes"
    notes.write_text("one\ntwo")
    replaced(tmp_path / "run" / "samples" / "greedy.jsonl", notes)
    with pytest.raises(StoreError):
        fake_run(tmp_path / "run", limit=4)
    assert notes.read_text() == "one\ntwo"


def test_the_folder_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    fake_run(tmp_path / "run", limit=4)
    assert (tmp_path / "disk" / "results.json").is_file()


def test_a_sweeps_folders_are_no_links(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "out" / "tuning").symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="never followed"):
        sweep(
            lambda split: make_task("steps", TaskOptions(split=split, limit=3)),
            FakeEngine(),
            {"greedy": [MethodSpec("greedy")]},
            tmp_path / "out",
        )
    assert list((tmp_path / "other").iterdir()) == []


def test_a_store_in_a_cache_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="never followed"), open_store(tmp_path / "store", tmp_path):
        pass
    with open_store(tmp_path / "store") as store:  # named by the user
        assert store.own_folder("traces/greedy").is_dir()
