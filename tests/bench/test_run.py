"""The form of a run's JSON, from a tiny one; no figure of it is asserted, since speed belongs to `make bench`."""

import json
from typing import Any

import pytest
import torch

from loopcd.bench.compare import spreads
from loopcd.bench.parts import Settings, run
from loopcd.bench.speeds import drafting
from loopcd.bench.tables import tables
from loopcd.decoding.draft import DraftReport


def test_ratios_and_models_have_the_fixed_form(found: dict[str, Any], folders: list[str]) -> None:
    assert list(found["ratios"]) == list(found["models"]) == folders
    for model in folders:
        assert list(found["ratios"][model]) == ["1", "2"]
        for told in found["ratios"][model].values():
            assert {"loopcd/greedy", "loopcd+draft/greedy", "greedy+draft/greedy", "exit+loopcd/greedy"} <= set(told)
            assert all(set(each) == {"median", "low", "high"} for each in told.values())
        assert set(found["models"][model]) == {"acceptance", "accepted_length", "contested"}


def test_a_run_is_json_and_every_ratio_is_a_positive_number(found: dict[str, Any]) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(spread.low > 0 for _, spread in spreads(found))


def test_a_method_that_the_model_cannot_run_is_told_with_the_reason(found: dict[str, Any], folders: list[str]) -> None:
    assert "one token" in found["refused"][folders[0]]["selfeval"]  # " A" is two bytes
    assert "selfeval/greedy" not in found["ratios"][folders[0]]["1"]


def test_details_tell_what_drafting_did(found: dict[str, Any], folders: list[str]) -> None:
    for model in folders:
        for batch in ("1", "2"):
            methods = found["details"][model][batch]
            for drafted in (methods["greedy+draft"], methods["loopcd+draft"]):
                assert 0 <= drafted["acceptance"] <= 1
                assert drafted["identical_texts"] == drafted["texts"] == 2
                assert drafted["near_ties"] >= 0 and drafted["cache_over_plain"] > 0
            assert methods["greedy"]["loops_per_token"] == 4
            assert methods["exit+loopcd"]["loops_per_token"] <= 4


def test_drafting_changes_no_token(found: dict[str, Any], folders: list[str]) -> None:
    """Also of a model whose drafts are mostly refused."""
    for method in ("greedy", "loopcd"):
        told = found["exact"][folders[0]]["2"][method]
        assert len(told) >= 3  # drafts of several lengths
        for each in told.values():
            assert each["identical_texts"] == each["texts"] == 8 and each["near_ties"] >= 0


def test_every_part_has_a_table(found: dict[str, Any]) -> None:
    titles = [table.title for table in tables(found)]
    assert [title.split(" (")[0] for title in titles] == [
        "Methods",
        "Details",
        "Drafting changes no token",
        "Decoding",
        "Across batches and contexts",
    ]
    assert all(len(row) == len(table.columns) for table in tables(found) for row in table.rows)


def test_without_built_in_models_random_ones_are_taken_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopcd.bench.parts.built_in", dict)
    said: list[str] = []
    found = run(Settings(what=("methods",), batches=(1,), rounds=1, max_new_tokens=4, quick=True), said.append)
    assert list(found["ratios"]) == ["huginn-medium", "ouro-medium"]
    assert "random weights" in said[0]


def test_threads_are_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(Settings(what=("decode",), rounds=1, max_new_tokens=4, quick=True))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"what": ("speed",)}, "what=speed: some of methods"),
        ({"what": ()}, "what=nothing"),
        ({"batches": (0,)}, "batch=0"),
        ({"batches": ()}, "batch="),
        ({"rounds": 0}, "rounds=0"),
        ({"max_new_tokens": 1}, "max_new_tokens=1"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)


def test_a_quick_run_leaves_the_long_parts_out() -> None:
    assert Settings(quick=True).parts == ["methods", "decode"]
    assert Settings().parts == ["methods", "exact", "decode"]


def test_acceptance_is_of_all_jobs_together() -> None:
    one = DraftReport(2, 4, rounds=2, row_rounds=2, plain=1, proposed=6, accepted=6, emitted=8)
    other = DraftReport(2, 4, rounds=6, row_rounds=6, plain=1, proposed=18, accepted=0, emitted=6, near_ties=1)
    told = drafting([one, other])
    assert told["acceptance"] == 6 / 24
    assert told["accepted_length"] == 14 / 8
    assert (told["rounds"], told["plain_passes"], told["near_ties"]) == (8, 2, 1)
