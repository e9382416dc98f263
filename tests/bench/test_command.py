"""`loopcd bench` as a user calls it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loopcd.cli import main


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


def test_json_is_all_of_standard_output_and_progress_is_apart(folders: list[str]) -> None:
    few = ("--batch", "1", "--rounds", "1", "--max-new-tokens", "4")
    done = bench("--json", "--quick", "--what", "methods", "--models", folders[1], *few)
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["ratios"][folders[1]]) == ["1"]
    assert "round 1 of 1" in done.stderr


def test_a_stored_run_is_shown_as_tables(stored: Path) -> None:
    done = bench("--from", str(stored))
    assert done.exit_code == 0, done.output
    assert "Drafting changes no token" in done.stdout


def test_parts_that_were_run_apart_are_shown_as_one(stored: Path, tmp_path: Path) -> None:
    whole: dict[str, Any] = json.loads(stored.read_text())
    apart = {"ratios": {}, "models": {}, "machine": whole["machine"], "quick": False, "decode": whole.pop("decode")}
    for name, run in (("one", {**whole, "seconds": {"methods": 2, "all": 2}}), ("two", {**apart, "seconds": {"decode": 3}})):
        (tmp_path / name).write_text(json.dumps(run))
    done = bench("--from", str(tmp_path / "one"), "--from", str(tmp_path / "two"), "--json")
    found = json.loads(done.stdout)
    assert found["ratios"] == whole["ratios"] and found["decode"] == apart["decode"]
    assert found["seconds"] == {"methods": 2, "decode": 3, "all": 5}


def test_a_run_is_compared_with_an_earlier_one(stored: Path, tmp_path: Path) -> None:
    earlier: dict[str, Any] = json.loads(stored.read_text())
    first = next(iter(earlier["ratios"].values()))["1"]["loopcd/greedy"]
    first.update({key: value * 100 for key, value in first.items()})
    (tmp_path / "earlier.json").write_text(json.dumps(earlier))
    done = bench("--from", str(stored), "--compare", str(tmp_path / "earlier.json"), "--json")
    assert done.exit_code == 0, done.output
    flagged = [each for each in json.loads(done.stdout)["changes"] if each["flagged"]]
    assert [each["change"] for each in flagged] == [pytest.approx(-0.99)]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--what", "speed"], 1, "what=speed"),
        (["--models", "no-such-model", "--what", "methods"], 1, "no-such-model"),
        (["--from", "no-such-file.json"], 1, "no-such-file.json"),
        (["--rounds", "0"], 1, "rounds=0"),
        (["--batch", "one"], 2, "--batch"),
        (["--batch", ","], 2, "--batch"),
        (["--rounds", "many"], 2, "--rounds"),
        (["--from", "stored.json", "--batch", "8"], 2, "--batch has no use with --from, which runs nothing"),
        (["--reference", "python,folder", "--what", "methods"], 1, "reference=python,folder: for the part of that name"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(arguments: list[str], status: int, message: str) -> None:
    done = bench(*arguments)
    assert done.exit_code == status
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text in ("{", "[]", '{"a": 1}'):
        path.write_text(text)
        done = bench("--compare", str(path))
        assert done.exit_code == 1
        assert "is not the JSON of a run" in done.output
