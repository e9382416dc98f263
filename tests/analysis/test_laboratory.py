"""Answers and traces: made once, shared, gone on with after an interruption, never taken for those of other settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.labs import Counting, laboratory, with_limit
from loopcd.analysis import laboratory as rooms
from loopcd.analysis.laboratory import GREEDY, Tally, Wanted
from loopcd.evaluation.plan import MethodSpec
from loopcd.evaluation.runner import Progress
from loopcd.tracing import trace_texts


def test_answers_are_made_once_and_shared_between_laboratories(
    folders: dict[str, Path], tmp_path: Path, counting: Counting
) -> None:
    first = laboratory(folders["ouro"], tmp_path)
    made = first.answers(GREEDY, first.loopcd())
    assert counting.prompts == 24
    again = laboratory(folders["ouro"], tmp_path)
    assert again.answers(again.loopcd(), GREEDY)[1].texts == made[0].texts
    assert counting.prompts == 24
    again.answers(again.loopcd(amateur_loop=3))
    assert counting.prompts == 36


def test_equal_settings_are_one_run_however_they_are_written(
    folders: dict[str, Path], tmp_path: Path, counting: Counting
) -> None:
    lab = laboratory(folders["ouro"], tmp_path)
    lab.answers(lab.loopcd())
    lab.answers(lab.loopcd(amateur_loop=lab.amateur, strength=lab.strength))
    assert counting.prompts == 12


def test_what_is_wanted_by_several_elements_is_run_together_once(
    folders: dict[str, Path], tmp_path: Path, counting: Counting
) -> None:
    lab = laboratory(folders["huginn"], tmp_path)
    wanted = [Wanted((lab.loopcd(), GREEDY)), Wanted((GREEDY, lab.loopcd(amateur_loop=2))), Wanted((GREEDY,), seeds=(0, 1))]
    lab.prepare(wanted)
    assert counting.prompts == lab.tally.expected == 12 * (3 + 2)


def test_other_items_loops_or_weights_are_other_answers(folders: dict[str, Path], tmp_path: Path, counting: Counting) -> None:
    lab = laboratory(folders["huginn"], tmp_path)
    lab.answers(GREEDY)
    with_limit(lab, 5).answers(GREEDY)
    laboratory(folders["huginn"], tmp_path, num_loops=3).answers(GREEDY)
    laboratory(folders["ouro"], tmp_path).answers(GREEDY)
    laboratory(folders["huginn"], tmp_path, max_new_tokens=4).answers(GREEDY)
    assert counting.prompts == 12 + 5 + 12 + 12 + 12
    assert len(list(tmp_path.glob("*/manifest.json"))) == 5


def test_an_interrupted_run_goes_on(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch, most=2)
    lab = laboratory(folders["ouro"], tmp_path / "stopped", batch_size=5)
    with pytest.raises(KeyboardInterrupt):
        lab.answers(GREEDY)
    counting.most = None
    assert (
        lab.answers(GREEDY)[0].texts == laboratory(folders["ouro"], tmp_path / "whole", batch_size=5).answers(GREEDY)[0].texts
    )
    assert counting.batches == 3 + 3


def test_traces_are_those_of_the_answers(folders: dict[str, Path], tmp_path: Path) -> None:
    lab = laboratory(folders["huginn"], tmp_path)
    (greedy,) = lab.answers(GREEDY)
    traces = list(lab.traces())
    assert len(traces) == 12 and [tuple(trace.token_ids.tolist()) for trace in traces] == list(greedy.token_ids)
    assert (traces[0].amateur_loop, traces[0].strength) == (lab.amateur, lab.strength)
    assert [trace.extra["correct"] for trace in traces] == greedy.right("strict")
    assert [trace.extra["gold"] for trace in traces] == [item.gold for item in lab.task().items]


def test_an_interruption_of_tracing_costs_one_part(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "PART", 4)
    lab = laboratory(folders["ouro"], tmp_path)
    made = []

    def stopping(model: object, tokenizer: object, items: list[object], **options: object) -> object:
        made.append(len(items))
        if len(made) == 2:
            raise KeyboardInterrupt
        return trace_texts(model, tokenizer, items, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rooms, "trace_texts", stopping)
    with pytest.raises(KeyboardInterrupt):
        lab.traces()
    traces = list(lab.traces())
    assert made == [4, 4, 4, 4] and len(traces) == 12
    assert list(lab.traces()) == traces and len(made) == 4


def test_the_settings_are_all_that_the_figures_depend_on(folders: dict[str, Path], tmp_path: Path) -> None:
    lab = laboratory(folders["ouro"], tmp_path)
    settings = lab.settings()
    assert settings["items"] == 12 and settings["loops"] == 4 and settings["task"] == "steps"
    assert settings["versions"]["torch"] and len(settings["weights_sha256"]) == 12
    coded = replace(lab, session=replace(lab.session, task="gsm8k", allow_code_execution=True))
    assert coded.benchmarks == ("gsm8k", "math500", "humaneval", "mbpp", "strategyqa")
    assert lab.benchmarks == ("steps", "steps-easy", "steps-hard", "steps-shift")


def test_progress_adds_up_over_stages() -> None:
    seen: list[Progress] = []
    tally = Tally(seen.append, expected=30)
    first, second, extra = tally.stage("one", True), tally.stage("two", True), tally.stage("three")
    first(Progress(5, 10, 5, 0.0))
    second(Progress(20, 20, 0, 8.0))
    extra(Progress(7, 7, 7, 0.0))  # nothing was to be done
    assert seen[-1] == Progress(25, 30, 5, 8.0)
    extra(Progress(1, 7, 0, 2.0))
    assert seen[-1] == Progress(26, 37, 5, 10.0)


def test_a_method_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="no method 'best'"):
        MethodSpec("best")
