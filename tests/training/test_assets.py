"""The models in the box: they load from the package, are small, and answer."""

import json
from pathlib import Path

import pytest

from loopcd.evaluation.tasks import steps
from loopcd.models.loading import load
from loopcd.models.names import built_in
from loopcd.training.accuracy import answers, right
from loopcd.training.tokenizer import build_tokenizer

NAMES = sorted(built_in())


def test_both_families_and_a_model_still_learning_are_in_the_box() -> None:
    assert {"tiny-huginn", "tiny-ouro", "tiny-early"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_answers_easy_problems(name: str) -> None:
    model, tokenizer = load(name)
    assert tokenizer is not None
    problems = steps.problems("steps-cue" if name == "tiny-early" else "steps-easy", "test", 24)
    made = answers(model, tokenizer, problems)
    assert all(each.finish_reason == "stop" for each in made)
    # Far below what it can do: this says that the weights are the trained ones, not how good they are.
    assert sum(right(problems, made)) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_says_where_it_comes_from(name: str) -> None:
    folder: Path = built_in()[name]
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000
    record = json.loads((folder / "training.json").read_text())
    assert record["recipe"]["name"] == name and "seed" in record and "torch" in record["versions"]
    assert (folder / "README.md").read_text().startswith(f"# {name}\n")


@pytest.mark.parametrize("name", NAMES)
def test_its_tokenizer_is_the_one_that_the_recipe_builds(name: str) -> None:
    _, tokenizer = load(name)
    assert tokenizer is not None
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
