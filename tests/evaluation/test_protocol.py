"""The authors' protocol on the real benchmarks: every prompt by its hash, and reference answers in the examples' form.

Runs where LOOPCD_DATA names a folder with the benchmarks' files (docs/evaluation.md lists them).
"""

import json
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from evaluation.fakes import PROTOCOL
from loopcd.evaluation.session import Session, grade_answers
from tools import byte_tokenizer, save_model, tiny_ouro

DATA = Path(os.environ.get("LOOPCD_DATA", "/nonexistent"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="LOOPCD_DATA names no folder with the benchmarks")
ITEMS = {"gsm8k": 1319, "math500": 500, "strategyqa": 2290, "humaneval": 164, "mbpp": 378}


@pytest.fixture(scope="module", params=["plain", "chat"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A folder without weights: a configuration and a tokenizer, with and without a chat template."""
    folder = save_model(tmp_path_factory.mktemp(request.param), tiny_ouro())
    if request.param == "chat":
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = PROTOCOL["chat_template"]
        tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    return request.param, folder


def hashed(line: dict[str, Any]) -> str:
    return sha256(line["prompt"].encode()).hexdigest()


@pytest.mark.parametrize("task", ["gsm8k", "math500", "strategyqa"])
def test_prompts_are_the_authors(task: str) -> None:
    lines = {line["id"].rpartition("/")[2]: line for line in Session(task=task, data=DATA).prompts()}
    assert len(lines) == ITEMS[task]
    wanted = {str(each["item"]): (each["characters"], each["sha256"]) for each in PROTOCOL["prompts"][task]}
    assert {name: (len(lines[name]["prompt"]), hashed(lines[name])) for name in wanted} == wanted


@pytest.mark.parametrize("task", ["humaneval", "mbpp"])
def test_prompts_of_programs_follow_the_chat_template(task: str, model: tuple[str, Path]) -> None:
    form, folder = model
    lines = {line["id"]: line for line in Session(str(folder), task, data=DATA).prompts()}
    assert len(lines) == ITEMS[task]
    wanted = {each["item"]: each[form] for each in PROTOCOL["prompts"][task]}
    assert {name: hashed(lines[name]) for name in wanted} == wanted
    if form == "chat":
        plain = {line["id"]: line for line in Session(str(folder), task, data=DATA, no_chat=True).prompts()}
        assert {each["item"]: hashed(plain[each["item"]]) for each in PROTOCOL["prompts"][task]} == {
            each["item"]: each["plain"] for each in PROTOCOL["prompts"][task]
        }


def accuracies(task: str, texts: list[str]) -> dict[str, float]:
    made = grade_answers(Session(task=task, data=DATA).make_task(answered=True), texts, "gold")
    return {metric: round(each.accuracy, 4) for metric, each in made.methods[0].shares.items()}


def test_gold_answers_to_gsm8k_are_right() -> None:
    worked = [json.loads(line)["answer"] for line in (DATA / "gsm8k_test.jsonl").read_text().splitlines()]
    parts = [re.sub(r"<<.*?>>", "", each).rpartition("####") for each in worked]
    texts = [f" {' '.join(chain.split())} The answer is {number.strip()}." for chain, _, number in parts]
    assert accuracies("gsm8k", texts) == {"strict": 1.0, "flex": 1.0}


@pytest.mark.slow
def test_gold_answers_to_math500_are_right_but_for_one() -> None:
    task = Session(task="math500", data=DATA).make_task(answered=True)
    ending = "\nFinal Answer: The final answer is ${gold}$. I hope it is correct."
    texts = [f"\n{item.document['solution']}{ending.format(gold=item.gold)}" for item in task.items]
    assert accuracies("math500", texts) == {"strict": 1.0, "flex": 0.998}


def test_gold_answers_to_strategyqa_are_right() -> None:
    items = Session(task="strategyqa", data=DATA).make_task(answered=True).items
    assert accuracies("strategyqa", [f" So the answer is {item.gold}." for item in items]) == {"accuracy": 1.0}
