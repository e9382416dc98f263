"""Tasks: their prompts, their gold answers, and answers that are hard to grade."""

import gzip
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from evaluation.fakes import PROTOCOL, gsm8k_folder, math500_folder, strategyqa_folder
from loopcd.evaluation.data import KNOWN, read_lines
from loopcd.evaluation.task import Item, Task, TaskOptions, limited, tuning_half
from loopcd.evaluation.tasks import TASKS, make_task, steps
from loopcd.evaluation.tasks.gsm8k import FILES
from loopcd.evaluation.tasks.harness import load_definition
from loopcd.evaluation.tasks.strategyqa import EXEMPLARS, answer_of


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task("gsm8k", TaskOptions(data=gsm8k_folder(tmp_path_factory.mktemp("gsm8k"))))


@pytest.fixture(scope="module")
def hashes(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """GSM8K in lm-eval's own form."""
    return make_task("gsm8k-lm-eval", TaskOptions(data=gsm8k_folder(tmp_path_factory.mktemp("gsm8k"))))


@pytest.fixture(scope="module")
def math500(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task("math500", TaskOptions(data=math500_folder(tmp_path_factory.mktemp("math500"))))


@pytest.fixture
def strategyqa(tmp_path: Path) -> Task:
    return make_task("strategyqa", TaskOptions(data=strategyqa_folder(tmp_path)))


def graded(task: Task, text: str, place: int) -> dict[str, bool]:
    return task.grade([task.items[place]], [text])[0]


HAY, DEGREES, PENS = 0, 1, 2  # the problems whose answers are 1,234, -5 and 18


# -- gsm8k by the paper's authors ----------------------------------------------------------------------------------------


def test_gsm8k_shows_the_first_three_examples_of_lm_evals_chain_of_thought(gsm8k: Task) -> None:
    prompt = gsm8k.items[PENS].prompt
    assert prompt.startswith("Q: There are 15 trees in the grove.") and prompt.count("The answer is ") == 3
    assert prompt.endswith("The answer is 39.\n\nQ: Three pens cost 6 dollars each. How many dollars is that?\nA:")
    assert gsm8k.question(prompt) == "Three pens cost 6 dollars each. How many dollars is that?"
    assert [item.id for item in gsm8k.items] == [f"gsm8k/test/{number}" for number in range(4)]
    assert [item.gold for item in gsm8k.items] == ["1,234", "-5", "18", "5"]
    assert gsm8k.stop == ("\n\n", "Q:", "</s>") and gsm8k.max_new_tokens == 256 and gsm8k.protocol == "paper"


@pytest.mark.parametrize("case", PROTOCOL["grades"]["gsm8k"], ids=lambda case: case["text"].strip())
def test_gsm8k_grades_are_the_authors(gsm8k: Task, case: dict[str, Any]) -> None:
    item = replace(gsm8k.items[0], gold=case["gold"])
    assert gsm8k.grade([item], [case["text"]]) == [{"strict": case["strict"], "flex": case["flex"]}]


@pytest.mark.parametrize(
    ("place", "text", "strict", "flex"),
    [
        (HAY, " 1200 + 34 = 1234. The answer is 1,234.", True, True),
        (HAY, " The answer is 1.234.", False, False),
        (PENS, " The answer is 18.00.", False, False),
        (PENS, " The answer is 18..", True, False),  # flex reads "18..", and takes one full stop off
        (PENS, " The answer is -18.", False, False),
        (PENS, " the answer is 18.", False, True),
        (PENS, "\n\n The answer is 18.", False, False),
        (PENS, " The answer is ...", False, False),
        (PENS, "", False, False),
        (PENS, " 18 " * 250_000 + "The answer is 18.", True, True),
        (PENS, " The answer is " + "9" * 1_000_000, False, False),
    ],
)
def test_gsm8k_tricky_answers(gsm8k: Task, place: int, text: str, strict: bool, flex: bool) -> None:
    assert graded(gsm8k, text, place) == {"strict": strict, "flex": flex}


def test_gsm8k_tunes_on_training_problems(tmp_path: Path) -> None:
    task = make_task("gsm8k", TaskOptions(data=gsm8k_folder(tmp_path), split="tuning"))
    assert len(task.items) == 3 and all("Mia" in task.question(item.prompt) for item in task.items)
    (tmp_path / "gsm8k_train.jsonl.gz").unlink()
    assert len(make_task("gsm8k", TaskOptions(data=tmp_path, split="report")).items) == 4  # reads the test problems alone


# -- gsm8k through lm-eval ----------------------------------------------------------------------------------------------


def test_lm_evals_gsm8k_gold_answers_are_right(hashes: Task) -> None:
    texts = [f" {item.document['answer']}" for item in hashes.items]
    assert hashes.grade(hashes.items, texts) == [{"strict": True, "flex": True}] * 4


@pytest.mark.parametrize(
    ("place", "text", "strict", "flex"),
    [
        (HAY, "So it is 1234.\n#### 1,234", True, True),
        (HAY, "#### 1234", True, True),
        (HAY, "There are 1,234 bales.", False, True),
        (HAY, "#### 1.234", False, False),
        (PENS, "It costs $18.00", False, False),  # lm-eval compares as text: 18.00 is not 18
        (PENS, "#### 18.00", False, False),
        (PENS, "It costs $18.", False, True),
        (PENS, "#### 18.", True, True),
        (PENS, "#### $18", False, True),
        (PENS, "#### 18 dollars", True, True),
        (PENS, "18 dollars for 3 pens", False, False),  # the last number counts
        (PENS, "#### 17\n#### 18", False, True),  # the first #### counts, and the last number
        (PENS, "#### 18\n\nQuestion 2: 4 + 4 = 8", True, False),
        (PENS, "####18", False, True),
        (PENS, "#### eighteen", False, False),
        (DEGREES, "#### -5", True, True),
        (DEGREES, "#### 5", False, False),
        (DEGREES, "It is -5 degrees", False, True),
        (DEGREES, "#### - 5", False, False),
        (PENS, "", False, False),
        (PENS, "   \n", False, False),
        (PENS, "No idea.", False, False),
        (PENS, "[invalid]", False, False),
        (PENS, "18 " * 333_333 + "\n#### 18", True, True),
        (PENS, "x" * 1_000_000, False, False),
        (PENS, "#### " + "9" * 1_000_000, False, False),
    ],
)
def test_lm_evals_gsm8k_tricky_answers(hashes: Task, place: int, text: str, strict: bool, flex: bool) -> None:
    assert graded(hashes, text, place) == {"strict": strict, "flex": flex}


def test_prompts_of_gsm8k_lm_eval_are_lm_evals(hashes: Task, tmp_path: Path) -> None:
    """The same as lm-eval builds when it runs the task itself: three shots of the training split, its seed."""
    data = gsm8k_folder(tmp_path)
    splits = {split: read_lines(data, FILES[split])[0] for split in ("train", "test")}
    definition = load_definition("gsm8k/gsm8k.yaml", 3, splits)
    definition.set_fewshot_seed(1234)
    definition.build_all_requests()
    assert [item.prompt for item in hashes.items] == [request.args[0] for request in definition.instances]
    prompt = hashes.items[0].prompt
    assert prompt.count("Question:") == 4 and prompt.endswith("\nAnswer:")
    assert hashes.question(prompt) == "A barn holds 1,200 bales and gets 34 more. How many bales are there?"
    assert "Question:" in hashes.stop


def test_lm_evals_gsm8k_tunes_on_training_problems_that_are_never_shots(tmp_path: Path) -> None:
    task = make_task("gsm8k-lm-eval", TaskOptions(data=gsm8k_folder(tmp_path), split="tuning"))
    asked = {task.question(item.prompt) for item in task.items}
    shown = {part.partition("\n")[0].strip() for item in task.items for part in item.prompt.split("Question:")[1:-1]}
    assert len(asked) == 3 and not asked & shown
    assert all("Mia" in question for question in asked | shown)
    report = make_task("gsm8k-lm-eval", TaskOptions(data=tmp_path, split="report"))
    assert len(report.items) == 4


# -- math500 through lm-eval --------------------------------------------------------------------------------------------


def test_math500_gold_answers_are_right(math500: Task) -> None:
    texts = [
        f" {item.document['solution']}\nFinal Answer: The final answer is ${item.gold}$. I hope it is correct."
        for item in math500.items
    ]
    assert math500.grade(math500.items, texts) == [{"strict": True, "flex": True}] * 3
    prompt = math500.items[0].prompt
    assert prompt.count("Problem:\n") == 5 and prompt.count("\n\nSolution:\n") == 4 and prompt.endswith("\n\nSolution:")
    assert math500.stop == ("Problem:",) and math500.max_new_tokens == 512 and math500.protocol == "paper"
    assert math500.question(math500.items[2].prompt) == "What is $7 \\cdot 6$?"


@pytest.mark.parametrize(
    ("place", "text", "strict", "flex"),
    [
        (0, "Final Answer: The final answer is $\\frac{2}{4}$. I hope it is correct.", True, True),
        (0, "So it is $\\boxed{0.5}$.", False, True),
        (2, "Final Answer: The final answer is $41$. I hope it is correct.", False, False),
        (2, "", False, False),
        (2, "no answer", False, False),
    ],
)
def test_math500_tricky_answers(math500: Task, place: int, text: str, strict: bool, flex: bool) -> None:
    assert graded(math500, text, place) == {"strict": strict, "flex": flex}


def test_math500_answers_that_cannot_be_computed_are_wrong(math500: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """They held up an evaluation for minutes, and took gigabytes. Grading may be asked for from any thread."""
    monkeypatch.setattr("loopcd.evaluation.tasks.harness.MATH_SECONDS", 3)
    with ThreadPoolExecutor(1) as other:
        endless = other.submit(graded, math500, "Final Answer: The final answer is $(10^{10^{10}})!$. I hope it is correct.", 2)
        assert endless.result() == {"strict": False, "flex": False}


def test_math500_halves_are_disjoint_and_whole(tmp_path: Path) -> None:
    data = math500_folder(tmp_path)
    parts = [make_task("math500", TaskOptions(data=data, split=split)).items for split in ("tuning", "report")]
    assert [len(part) for part in parts] == [1, 2]
    assert not {item.id for item in parts[0]} & {item.id for item in parts[1]}


# -- strategyqa ---------------------------------------------------------------------------------------------------------


def test_an_id_that_stands_there_twice_is_refused() -> None:
    items = [Item("own/a", "one", 1), Item("own/b", "two", 2), Item("own/a", "three", 3)]
    with pytest.raises(ValueError, match="the data has 2 items with the id 'own/a'"):
        limited(items, TaskOptions())


@pytest.mark.parametrize("case", PROTOCOL["grades"]["strategyqa"], ids=lambda case: case["text"].strip())
def test_strategyqa_grades_are_the_authors(strategyqa: Task, case: dict[str, Any]) -> None:
    item = replace(strategyqa.items[0], gold=case["gold"])
    assert strategyqa.grade([item], [case["text"]]) == [{"accuracy": case["accuracy"]}]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" It is. So the answer is yes.", "yes"),
        ("So the answer is No", "no"),
        ("the answer is: **yes**", None),
        ("The answer is yes. Wait, the answer is no.", "yes"),
        ("The answer is no. thus, yes.", "yes"),
        ("Thus, no.", None),
        ("yes", None),
        ("So the answer is not known.", None),
        ("", None),
        ("yes " * 250_000, None),
    ],
)
def test_strategyqa_answers(text: str, answer: str | None) -> None:
    assert answer_of(text) == answer


def test_strategyqa_shows_the_examples_as_they_are_and_scores_every_question(strategyqa: Task) -> None:
    assert [item.id for item in strategyqa.items] == [f"strategyqa/own{number}" for number in range(5)]
    assert strategyqa.items[1].prompt == (
        "Q: Yes or no: Is 0 even?\nA: Zero is twice zero. So the answer is yes.\n\n"
        "Q: Is  1 even? \nA: One is odd. So the answer is no.\n\nQ: Is 1 even?\nA:"
    )
    assert strategyqa.question(strategyqa.items[1].prompt) == "Is 1 even?"
    assert strategyqa.stop == ("Q:", "\n\n##", "\n") and strategyqa.max_new_tokens == 256
    gold = [f" So the answer is {item.gold}." for item in strategyqa.items]
    assert strategyqa.grade(strategyqa.items, gold) == [{"accuracy": True}] * 5
    assert strategyqa.grade(strategyqa.items, ["yes"] * 5) == [{"accuracy": False}] * 5


def test_strategyqa_takes_examples_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, mine = strategyqa_folder(tmp_path / "data"), tmp_path / "mine.json"
    mine.write_text(json.dumps([{"question": "Is 7 even?", "chain": "7 is 6 + 1.", "answer": "no", "source": "mine"}]))
    task = make_task("strategyqa", TaskOptions(data=data, exemplars=mine))
    assert task.items[0].prompt == "Q: Is 7 even?\nA: 7 is 6 + 1. So the answer is no.\n\nQ: Is 0 even?\nA:"
    assert task.describe()["shots"] == 1 and task.describe()["data"][1]["known"] is False
    shown = b"Q: Is 7 even?\nA: 7 is 6 + 1. So the answer is no."  # whatever the file's name, blanks and other fields
    monkeypatch.setitem(KNOWN, "strategyqa_6shot_cot_exemplars.json", sha256(shown).hexdigest())
    known = make_task("strategyqa", TaskOptions(data=data, exemplars=mine)).describe()["data"][1]
    assert (known["source"], known["known"]) == ("mine.json", True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"question": "Q", "answer": "yes"}]', "example 1 has no text 'chain'; each needs question, chain, answer"),
        ('[{"question": " ", "chain": "c", "answer": "yes"}]', "example 1 has no text 'question'"),
        ('[{"question": "Q", "chain": ["c"], "answer": "yes"}]', "example 1 has no text 'chain'"),
        ('[{"question": "Q", "chain": "c", "answer": true}]', "example 1 has no text 'answer'"),
        ('[{"question": "Q", "chain": "c", "answer": "maybe"}]', "example 1 has the answer 'maybe'"),
        ('["Q"]', "example 1 has no text 'question'"),
        ("[]", "must hold a JSON list with at least one example"),
        ('{"question": "Q"}', "must hold a JSON list with at least one example"),
        ("Q: x", "does not hold JSON"),
    ],
)
def test_examples_that_lack_what_the_template_needs_are_refused(tmp_path: Path, content: str, said: str) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(content)
    with pytest.raises(ValueError, match=re.escape(said)):
        make_task("strategyqa", TaskOptions(data=strategyqa_folder(tmp_path / "data"), exemplars=mine))


def test_strategyqa_without_examples_is_refused(tmp_path: Path) -> None:
    data = strategyqa_folder(tmp_path)
    (data / EXEMPLARS).unlink()
    with pytest.raises(ValueError, match="strategyqa needs worked examples"):
        make_task("strategyqa", TaskOptions(data=data))


# -- steps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", steps.VARIANTS)
def test_steps_gold_answers_are_right(name: str) -> None:
    task = make_task(name, TaskOptions(limit=40))
    assert task.grade(task.items, [item.document.answer for item in task.items]) == [{"strict": True, "flex": True}] * 40


@pytest.mark.parametrize(
    ("text", "strict", "flex"),
    [
        ("#### {gold}", True, True),
        (" They keep 51 - 11 = {gold} coins.\n#### {gold}", True, True),
        ("{gold}", False, True),
        ("#### {gold}.", True, True),
        ("${gold}", False, True),
        ("${gold}.00", False, False),
        ("#### -{gold}", False, False),
        ("#### {gold} coins", True, True),
        ("#### {gold}\n#### 0", True, False),
        ("#### 0\n#### {gold}", False, True),
        ("", False, False),
        ("no number", False, False),
        ("9" * 1_000_000, False, False),
    ],
)
def test_steps_tricky_answers(text: str, strict: bool, flex: bool) -> None:
    task = make_task("steps", TaskOptions(limit=1))
    assert graded(task, text.format(gold=task.items[0].gold), 0) == {"strict": strict, "flex": flex}


def test_steps_has_items_as_asked_and_splits_of_its_own() -> None:
    assert len(make_task("steps").items) == 500
    fewer, more = (make_task("steps", TaskOptions(limit=limit)).items for limit in (20, 600))
    assert list(fewer) == list(more)[:20]
    tuning = make_task("steps", TaskOptions(limit=200, split="tuning")).items
    assert not {item.prompt for item in tuning} & {item.prompt for item in more}


# -- all tasks ----------------------------------------------------------------------------------------------------------


def test_a_limit_is_a_fixed_subset_in_order() -> None:
    items = [Item(f"k{number}", "", 0) for number in range(100)]
    ten, twenty = (limited(items, TaskOptions(limit=limit)) for limit in (10, 20))
    assert len(ten) == 10 and {item.id for item in ten} < {item.id for item in twenty}
    assert ten == sorted(ten, key=items.index) and ten != items[:10]
    assert limited(items, TaskOptions()) == limited(items, TaskOptions(limit=1000)) == items
    first, second = (tuning_half(items, TaskOptions(split=split))[0] for split in ("tuning", "report"))
    assert len(first) == len(second) == 50 and sorted([*first, *second], key=items.index) == items


def test_other_data_than_the_known_is_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loopcd"):
        task = make_task("math500", TaskOptions(data=math500_folder(tmp_path)))
    assert "math500.jsonl has sha256" in caplog.text and "not the known 35dc41080a36" in caplog.text
    assert task.describe()["data"][0]["known"] is False


def test_a_packed_file_may_lie_there_unpacked_or_packed_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = b'{"a": 1}\n{"a": 2}\n'
    monkeypatch.setitem(KNOWN, "own.jsonl", sha256(content).hexdigest())
    with pytest.raises(ValueError, match=r"has no own\.jsonl\.gz"):
        read_lines(tmp_path, "own.jsonl.gz")
    (tmp_path / "own.jsonl").write_bytes(content)
    records, file = read_lines(tmp_path, "own.jsonl.gz")
    assert records == [{"a": 1}, {"a": 2}] and (file.source, file.known) == ("own.jsonl", True)
    (tmp_path / "own.jsonl.gz").write_bytes(gzip.compress(content, 1))
    assert read_lines(tmp_path, "own.jsonl.gz")[1].known is True
    (tmp_path / "own.jsonl").unlink()
    assert read_lines(tmp_path, "own.jsonl")[1].source == "own.jsonl.gz"
    assert caplog.text == ""
    (tmp_path / "own.jsonl.gz").write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(ValueError, match="does not hold JSON lines"):
        read_lines(tmp_path, "own.jsonl.gz")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gsm9k", {}, f"there is no task 'gsm9k': known are {', '.join(TASKS)}"),
        ("gsm8k", {"data": Path("/nowhere")}, "--data /nowhere: there is no such folder"),
        ("gsm8k", {"data": Path("/tmp")}, "/tmp has no gsm8k_test.jsonl"),
        ("steps", {"data": Path("/tmp")}, "steps is made by the package"),
        ("steps", {"limit": 0}, "--limit 0"),
        ("steps", {"max_new_tokens": 0}, "--max-new-tokens 0"),
        ("steps", {"exemplars": Path("x")}, "only strategyqa"),
        ("math500", {}, "could not be had from the hub"),
    ],
)
def test_what_cannot_be_made_is_explained(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make_task(name, TaskOptions(**options))  # pyright: ignore[reportArgumentType]
    assert said in str(caught.value)
