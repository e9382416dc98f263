"""A card is made of a run's own files."""

from pathlib import Path

import pytest

from experiments.card import install
from loopcd.training.checkpoints import RunFolder


def test_a_card_copies_the_models_own_files_only(tmp_path: Path) -> None:
    """A run that was received could otherwise have a private file copied to where it is published."""
    victim, run = tmp_path / "victim", RunFolder(tmp_path / "run")
    victim.write_text("mine")
    run.model.mkdir(parents=True)
    (run.model / "config.json").symlink_to(victim)
    with pytest.raises(OSError, match="never followed"):
        install(run.path, tmp_path / "card")
    assert not (tmp_path / "card" / "config.json").exists()
