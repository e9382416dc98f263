"""The further parts of a run, from a tiny one; no figure of it is asserted, since speed belongs to `make bench`."""

import json
from typing import Any

import pytest

from benchmarks.evaluation import ANSWERS, Texts, draw_exits, drawn_lengths
from benchmarks.foretold import measure_foretold
from benchmarks.memory import describe_load
from benchmarks.wave import ticks_expected
from loopcd.bench.compare import spreads
from loopcd.bench.parts import Settings
from loopcd.bench.subjects import Subject, sharpen
from loopcd.bench.tables import leaves, tables
from loopcd.decoding import Greedy, LoopCD
from tools import tiny_huginn


def test_a_run_is_json_and_every_ratio_is_a_positive_number(found: dict[str, Any]) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(spread.low > 0 for _, spread in spreads(found))


def test_every_part_has_a_table(found: dict[str, Any]) -> None:
    assert [table.title.split(" (")[0] for table in tables(found)] == [
        "Methods",
        "Details",
        "Decoding",
        "Across batches and contexts",
        "What LoopCD costs",
        "Worst case",
        "Waves",
        "Foretold drafts",
        "Evaluation",
        "What each device costs, as a share of a step",
        "Where the time of a step goes",
    ]
    assert all(len(row) == len(table.columns) for table in tables(found) for row in table.rows)


def test_whole_runs_have_these_parts_too() -> None:
    own = {"overhead", "worst", "wave", "foretold", "evaluation", "devices", "compile", "memory", "load"}
    assert set(Settings().parts) == {"methods", "exact", "decode"} | own
    assert Settings(quick=True).parts == ["methods", "decode", "load"]


def test_a_wave_is_told_beside_the_formula(found: dict[str, Any]) -> None:
    settling, late, refusing = (found["wave"][kind] for kind in ("settling", "settling late", "refusing"))
    assert set(settling) == set(late) == {"wave", "rounds", "by rule"} and set(refusing) == {"wave"}
    assert all(told["identical_texts"] == told["texts"] > 0 for told in (*settling.values(), *late.values()))
    assert settling["wave"]["ticks_a_token"] > 0 and "over rounds" in settling["wave"]
    assert ticks_expected(0.9, 4, 32) == pytest.approx(7.2)


def test_foretold_drafts_are_right_as_often_as_one_says(found: dict[str, Any]) -> None:
    assert all(told["identical_texts"] == told["texts"] > 0 for _, told in leaves(found["foretold"], 3))
    subject = Subject("x", tiny_huginn(), None, 24)
    always, never = (measure_foretold(subject, right, rounds=1) for right in (1.0, 0.0))
    for kind in ("rounds", "wave"):
        assert always[kind]["acceptance"] == 1
        assert never[kind]["acceptance"] == 0 and never[kind]["accepted_length"] == 1
        assert always[kind]["identical_texts"] == never[kind]["identical_texts"] == 2
    assert always["rounds"]["accepted_length"] > 1


def test_an_evaluation_is_of_the_same_texts(found: dict[str, Any]) -> None:
    told = found["evaluation"]
    assert len(told) == 5
    for what, by_method in told.items():
        for name, each in by_method.items():
            assert each["texts"] > 0 and (name != "greedy" or each["as_in_step"] == each["texts"]), what


def test_lengths_are_drawn_as_answers_are_long() -> None:
    lengths = drawn_lengths(2000, 100)
    assert 95 < sum(lengths) / len(lengths) < 110
    assert 100 * ANSWERS[0] <= min(lengths) < 50 and 200 < max(lengths) <= 100 * ANSWERS[-1]
    model = tiny_huginn()
    texts = Texts(model, [[5, 6], [7], [8, 9, 10]], [3, 9, 1])
    made = texts.in_step(Greedy(), 2)
    assert [len(made[at][0]) for at in range(3)] == [3, 9, 1] and made == texts.by_ticks(Greedy(), 2)


def test_drawn_exits_are_spread_around_the_middle() -> None:
    model = tiny_huginn(mean_recurrence=8)
    method = Greedy(exit=draw_exits(model))
    texts = Texts(model, Subject("x", model, None, 0).prompts(4), [12] * 4)
    made = texts.by_ticks(method, 2)
    loops = [each for _, by_token in made.values() for each in by_token]
    assert made == texts.in_step(method, 2)
    assert len(set(loops)) > 3 and 2.5 < sum(loops) / len(loops) < 5.5


def test_a_sharpened_head_leaves_few_positions_contested() -> None:
    subject = Subject("x", tiny_huginn(), None, 24)
    prompts = subject.prompts(8)
    before = LoopCD().rows(subject.job(prompts)).contested.float().mean()
    sharpen(subject, prompts)
    after = LoopCD().rows(subject.job(prompts)).contested.float().mean()
    assert after < before
    assert 0 < after < 0.4


def test_the_peak_of_loading_is_what_came_on_top_of_the_imports() -> None:
    told = describe_load(1000, {"before": 500, "peak": 1600, "seconds": 1.0})
    assert (told["peak_bytes"], told["over_checkpoint"]) == (1100, 1.1)
    assert describe_load(1000, {"before": None, "peak": None, "seconds": 1.0})["over_checkpoint"] is None
