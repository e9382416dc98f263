"""Training runs and model folders with links in them: what they point to is left alone."""

from pathlib import Path

import pytest

from loopcd.training.checkpoints import RunFolder
from loopcd.training.curves import draw_curves
from tools import byte_tokenizer, tiny_ouro


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    return folder


def test_record_and_log_are_not_written_through_links(run: RunFolder, victim: Path) -> None:
    for name in ("run.json", "log.jsonl"):
        (run.path / name).symlink_to(victim)
    with pytest.raises(OSError, match="never followed"):
        run.write_run({})
    with pytest.raises(OSError, match="never followed"):
        run.append_log({"loss": 1})
    assert victim.read_text() == "mine"


def test_a_model_is_not_saved_through_links(run: RunFolder, victim: Path) -> None:
    run.model.mkdir()
    (run.model / "model.safetensors").symlink_to(victim)
    with pytest.raises(OSError, match="never followed"):
        run.save_model(tiny_ouro(), byte_tokenizer(), run.model)
    assert victim.read_text() == "mine"
    (run.path / "snapshots").symlink_to(victim.parent)
    with pytest.raises(OSError, match="never followed"):
        run.save_model(tiny_ouro(), byte_tokenizer(), run.snapshot_at(5))
    assert sorted(path.name for path in victim.parent.iterdir()) == ["run", "victim"]


def test_curves_are_not_drawn_through_a_link(run: RunFolder, victim: Path) -> None:
    run.append_log({"tokens": 1, "loss": 1.0})
    (run.path / "curves.png").symlink_to(victim)
    with pytest.raises(OSError, match="never followed"):
        draw_curves(run.path, run.path / "curves.png")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_damaged_record_is_named(run: RunFolder, text: str) -> None:
    (run.path / "log.jsonl").write_text(text + "\n")
    (run.path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"log\.jsonl, line 1 is damaged"):
        run.read_log()
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        run.read_run()
