"""Sweeps: the paper's grids, chosen on other items than the reported ones."""

import errno
import json
from pathlib import Path

import pytest

from evaluation.fakes import FakeEngine, contents
from loopcd.evaluation.plan import parse_methods
from loopcd.evaluation.session import Session
from loopcd.evaluation.store import StoreError
from loopcd.evaluation.sweep import PRACTICE, Sweep, amateur_loops, grid, sweep, wanted_grids
from loopcd.evaluation.task import Split, Task, TaskOptions
from loopcd.evaluation.tasks import make_task


def labels(method: str, model_type: str = "huginn_raven", loops: int = 32, draws_state: bool = True) -> list[str]:
    return [spec.label for spec in grid(method, model_type, loops, draws_state)]


def test_the_grids_are_the_papers() -> None:
    assert labels("loopcd") == [f"loopcd:amateur_loop={loop},strength={s}" for loop in (6, 8, 10) for s in (0.1, 0.2, 0.3)]
    assert labels("mti") == [f"mti:entropy_threshold={t}" for t in (0.5, 1.0, 1.5)]
    assert labels("loopguidance") == [f"loopguidance:weight={cap}" for cap in (0.5, 1.0, 1.5)]
    assert labels("noisecd") == ["noisecd"]
    assert labels("selfeval") == ["selfeval"]
    assert labels("selfeval", "ouro", 4, False) == ["selfeval:temperature=1.0,top_p=0.7", "selfeval:temperature=0.7,top_p=0.9"]
    assert [amateur_loops("ouro", 4), amateur_loops("huginn_raven", 8), amateur_loops("ouro", 2)] == [
        (1, 2, 3),
        (1, 2, 3),
        (1,),
    ]


def test_named_settings_are_kept_and_greedy_is_always_there() -> None:
    grids = wanted_grids(parse_methods("loopcd:strength=0.5,mti"), "ouro", 4, False)
    assert {name: [spec.label for spec in specs] for name, specs in grids.items()} == {
        "greedy": ["greedy"],
        "loopcd": ["loopcd:strength=0.5"],
        "mti": labels("mti"),
    }
    exits = wanted_grids(parse_methods("greedy:exit_threshold=0.03,loopcd:strength=0.5"), "ouro", 4, False)
    assert [spec.label for specs in exits.values() for spec in specs] == [
        *("greedy", "greedy:exit_threshold=0.03", "loopcd:strength=0.5")
    ]
    with pytest.raises(ValueError, match="loopcd stands there twice"):
        wanted_grids(parse_methods("loopcd,loopcd:strength=0.5"), "ouro", 4, False)


def run_sweep(out: Path, engine: FakeEngine, paper_practice: bool = False, metric: str | None = None) -> Sweep:
    def make(split: Split) -> Task:
        return make_task("steps", TaskOptions(limit=30, split=split))

    return sweep(make, engine, wanted_grids(parse_methods("greedy,loopcd,mti"), "ouro", 4, False), out, metric, paper_practice)


def test_the_best_on_the_tuning_items_is_reported_on_others(tmp_path: Path) -> None:
    made = run_sweep(tmp_path / "sweep", FakeEngine())
    tuned = {each.method: each.shares["strict"].accuracy for each in made.tuning.results.methods}
    for method, spec in made.chosen.items():
        assert tuned[spec] == max(accuracy for each, accuracy in tuned.items() if each.name == method)
    assert [each.method for each in made.report.results.methods] == list(made.chosen.values())
    hashes = [
        json.loads((tmp_path / "sweep" / part / "manifest.json").read_text())["settings"]["task"]["items_sha256"]
        for part in ("tuning", "report")
    ]
    assert hashes[0] != hashes[1]
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text())["chosen"]["loopcd"] == made.chosen["loopcd"].label
    assert "| yes |" in made.page.read_text()


def test_a_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    run_sweep(tmp_path / "sweep", FakeEngine())
    before = contents(tmp_path / "sweep")
    path = next((tmp_path / "sweep" / "tuning" / "samples").iterdir())
    path.write_bytes(path.read_bytes()[:200])
    engine = FakeEngine()
    run_sweep(tmp_path / "sweep", engine)
    assert contents(tmp_path / "sweep") == before
    assert len({repr(method) for method, _, _ in engine.calls}) == 1  # only what was missing


def test_the_papers_practice_is_marked(tmp_path: Path) -> None:
    made = run_sweep(tmp_path / "sweep", FakeEngine(), paper_practice=True)
    assert not (tmp_path / "sweep" / "report").exists()
    assert PRACTICE in made.page.read_text() and PRACTICE in made.report.report.read_text()
    assert [each.method for each in made.report.results.methods] == list(made.chosen.values())


def test_a_folder_takes_one_sweep_and_no_other_files(tmp_path: Path) -> None:
    run_sweep(tmp_path / "sweep", FakeEngine())
    before = contents(tmp_path / "sweep")
    with pytest.raises(StoreError, match=r"holds report, which is none of this sweep's: use another --out"):
        run_sweep(tmp_path / "sweep", FakeEngine(), paper_practice=True)
    (tmp_path / "sweep" / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"holds thesis\.txt"):
        run_sweep(tmp_path / "sweep", FakeEngine())
    assert contents(tmp_path / "sweep") == {**before, "thesis.txt": b"mine"}


def test_a_sweeps_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(tmp_path / "sweep", FakeEngine())
    before = contents(tmp_path / "sweep")

    def torn(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("loopcd.evaluation.store.os.fsync", torn)
    with pytest.raises(StoreError, match="No space left on device; the finished items are kept"):
        run_sweep(tmp_path / "sweep", FakeEngine())
    monkeypatch.undo()
    assert {name: text for name, text in contents(tmp_path / "sweep").items() if not name.endswith(".partial")} == before
    run_sweep(tmp_path / "sweep", FakeEngine())
    assert contents(tmp_path / "sweep") == before


def test_an_unknown_metric_is_refused_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "make_engine", lambda self: pytest.fail("weights were loaded"))
    with pytest.raises(ValueError, match="--metric 'bleu': steps has strict, flex"):
        Session().sweep(tmp_path / "sweep", "bleu", False, lambda _: None, lambda _: None)
