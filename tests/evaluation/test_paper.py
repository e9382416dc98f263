"""The paper's models, settings and figures, and where they stand beside ours."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.fakes import FakeEngine, steps_with
from loopcd.evaluation import paper
from loopcd.evaluation.evaluate import evaluate
from loopcd.evaluation.plan import RunPlan, parse_methods
from loopcd.evaluation.report import cells
from loopcd.evaluation.session import Session
from loopcd.evaluation.task import Item, TaskOptions
from loopcd.evaluation.tasks import make_task
from loopcd.evaluation.tasks.questions import ReadTask
from loopcd.models.catalogue import published_as
from loopcd.models.presets import PUBLIC, Preset
from tools import save_model, tiny_huginn

HUGINN, OURO, THINKING = "tomg-group-umd/huginn-0125", "ByteDance/Ouro-1.4B", "ByteDance/Ouro-1.4B-Thinking"


def folder_of(public: str, place: Path) -> Path:
    """A folder with the public model's configuration and nothing else."""
    PUBLIC[public]().save_pretrained(place)
    return place


@pytest.mark.parametrize("public", [HUGINN, OURO, "ByteDance/Ouro-2.6B"])
def test_public_models_are_known_by_hub_id_and_by_configuration(public: str, tmp_path: Path) -> None:
    assert published_as(public) == published_as(public.upper()) == public
    assert published_as(str(folder_of(public, tmp_path / "mine"))) == public


def test_models_of_equal_sizes_are_told_apart_by_the_folders_name(tmp_path: Path) -> None:
    assert published_as(str(folder_of(THINKING, tmp_path / "Ouro-1.4B-Thinking"))) == THINKING
    assert published_as(str(folder_of(OURO, tmp_path / "models--ByteDance--Ouro-1.4B" / "snapshots" / "1"))) == OURO


def test_other_models_are_not_taken_for_public_ones(tmp_path: Path) -> None:
    assert published_as("tiny-huginn") is published_as("tiny-ouro") is published_as("nowhere") is published_as("a/b") is None
    assert published_as(str(save_model(tmp_path / "huginn-0125", tiny_huginn(mean_recurrence=32)))) is None


@pytest.mark.parametrize(
    ("model", "task", "loop", "strength"),
    [
        *((HUGINN, "gsm8k", 6, 0.3), (HUGINN, "math500", 8, 0.1), (HUGINN, "humaneval", 8, 0.3)),
        *((HUGINN, "mbpp", 8, 0.3), (HUGINN, "strategyqa", 8, 0.3)),
        *((OURO, "gsm8k", 1, 0.3), (OURO, "math500", 2, 0.1), (OURO, "humaneval", 2, 0.3)),
        *((OURO, "mbpp", 1, 0.2), (OURO, "strategyqa", 1, 0.3)),
    ],
)
def test_settings_are_those_of_table_2(model: str, task: str, loop: int, strength: float) -> None:
    plan = Session(model, task, settings="paper").plan()
    assert [spec.label for spec in plan.methods] == ["greedy", f"loopcd:amateur_loop={loop},strength={strength}"]


def test_what_is_given_is_kept(tmp_path: Path) -> None:
    folder = str(folder_of(HUGINN, tmp_path))
    asked = "loopcd:strength=0.2,loopcd:exit_threshold=0.03,min_loops=15,noisecd"
    assert [spec.label for spec in Session(folder, "gsm8k", asked, settings="paper").plan().methods] == [
        "loopcd:amateur_loop=6,strength=0.2",
        "loopcd:amateur_loop=6,strength=0.3,exit_threshold=0.03,min_loops=15",
        "noisecd",
    ]


@pytest.mark.parametrize("task", ["gsm8k-lm-eval", "steps"])
def test_a_task_that_the_paper_does_not_have_is_refused(task: str) -> None:
    with pytest.raises(ValueError, match=f"the paper has no setting for the task {task}"):
        Session(OURO, task, settings="paper").plan()


def test_figures_are_of_the_setting_that_was_used() -> None:
    assert paper.beside(HUGINN, "gsm8k", "greedy") == {"flex": 33.21, "strict": 23.12}
    assert paper.beside(HUGINN, "gsm8k", "loopcd", Preset(6, 0.3)) == {"flex": 36.62, "strict": 26.46}
    assert paper.beside(HUGINN, "gsm8k", "loopcd", Preset(8, 0.3)) == {"flex": 36.39, "strict": 24.34}  # Table 9
    assert paper.beside(OURO, "mbpp", "loopcd", Preset(1, 0.2)) == {"base": 74.60, "plus": 62.96}
    assert paper.beside(OURO, "strategyqa", "selfeval") == {"accuracy": 56.86}
    assert paper.runs_so(HUGINN, 32, "bfloat16") and paper.runs_so(OURO, 4, "float32")
    assert not (paper.runs_so(HUGINN, 8, "bfloat16") or paper.runs_so(OURO, 4, "int8") or paper.runs_so(THINKING, 4, "float32"))
    for other in (
        paper.beside(HUGINN, "gsm8k", "loopcd", Preset(10, 0.3)),
        paper.beside(HUGINN, "gsm8k", "loopguidance"),
        paper.beside(HUGINN, "gsm8k-lm-eval", "greedy"),
        paper.beside(THINKING, "gsm8k", "greedy"),
    ):
        assert other == {}


def gsm8k() -> ReadTask:
    steps = make_task("steps", TaskOptions(limit=8))
    items = [Item(f"gsm8k/test/{number}", item.prompt, str(item.gold)) for number, item in enumerate(steps.items)]
    return steps_with(items, name="gsm8k", max_new_tokens=256, protocol="paper")


def test_an_evaluation_of_the_papers_model_has_its_figures_beside_ours(tmp_path: Path) -> None:
    loops = ",".join(f"loopcd:amateur_loop={loop},strength=0.3" for loop in (1, 3))
    plan = RunPlan(parse_methods(f"greedy,{loops},noisecd,noisecd:strength=0.1"))
    made = evaluate(gsm8k(), FakeEngine(name=OURO), plan, tmp_path / "run")
    headings, rows = cells(made.results)
    assert headings[:5] == ["method", "strict", "flex", "paper strict", "paper flex"]
    assert [row[3:5] for row in rows] == [["60.65", "78.70"], ["64.06", "81.05"], ["–", "–"], ["57.92", "77.03"], ["–", "–"]]
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["protocol"] == "paper" and found["methods"]["greedy"]["paper"] == {"flex": 0.787, "strict": 0.6065}
    assert "paper" not in found["methods"]["loopcd:amateur_loop=3,strength=0.3"]
    assert "- protocol: paper" in made.report.read_text()
    other = evaluate(gsm8k(), FakeEngine(), plan, tmp_path / "other")
    assert "paper strict" not in cells(other.results)[0]
    sampled = evaluate(gsm8k(), FakeEngine(name=OURO), RunPlan(plan.methods, (0,), 0.7), tmp_path / "sampled")
    assert "paper strict" not in cells(sampled.results)[0]


@pytest.mark.parametrize(
    "changes",
    [{"max_new_tokens": 255}, {"split": "500 problems of train"}, {"protocol": "paper, plain prompt"}, {"files": "other"}],
    ids=str,
)
def test_figures_stand_only_beside_what_was_asked_as_in_the_paper(changes: dict[str, Any], tmp_path: Path) -> None:
    task = gsm8k()
    if "files" in changes:
        changes = {"files": tuple(replace(file, known=False) for file in task.files)}
    made = evaluate(replace(task, **changes), FakeEngine(name=OURO), RunPlan(parse_methods("greedy")), tmp_path / "run")
    assert "paper strict" not in cells(made.results)[0]
