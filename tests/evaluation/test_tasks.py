"""Tasks: their prompts, their gold answers, and answers that are hard to grade."""

import gzip
import json
import logging
from hashlib import sha256
from pathlib import Path

import pytest

from evaluation.fakes import gsm8k_folder, math500_folder, strategyqa_folder
from loopcd.evaluation.data import KNOWN, halves, read_lines, subset
from loopcd.evaluation.registry import TASKS, make_task
from loopcd.evaluation.task import Task, TaskOptions
from loopcd.evaluation.tasks import steps
from loopcd.evaluation.tasks.strategyqa import EXAMPLES, answer_of


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task("gsm8k", TaskOptions(data=gsm8k_folder(tmp_path_factory.mktemp("gsm8k"))))


@pytest.fixture(scope="module")
def math500(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task("math500", TaskOptions(data=math500_folder(tmp_path_factory.mktemp("math500"))))


@pytest.fixture
def strategyqa(tmp_path: Path) -> Task:
    return make_task("strategyqa", TaskOptions(data=strategyqa_folder(tmp_path, EXAMPLES)))


def graded(task: Task, text: str, place: int) -> dict[str, bool]:
    return task.grade([task.items[place]], [text])[0]


# -- gsm8k through lm-eval ----------------------------------------------------------------------------------------------

HAY, DEGREES, PENS = 0, 1, 2  # the problems whose answers are 1,234, -5 and 18


def test_gsm8k_gold_answers_are_right(gsm8k: Task) -> None:
    texts = [f" {item.document['answer']}" for item in gsm8k.items]
    assert gsm8k.grade(gsm8k.items, texts) == [{"strict": True, "flex": True}] * 4


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
def test_gsm8k_tricky_answers(gsm8k: Task, place: int, text: str, strict: bool, flex: bool) -> None:
    assert graded(gsm8k, text, place) == {"strict": strict, "flex": flex}


def test_gsm8k_prompts_are_lm_evals(gsm8k: Task) -> None:
    """The same as lm-eval builds when it runs the task itself: three shots of the training split, its seed."""
    definition = gsm8k.definition  # pyright: ignore[reportAttributeAccessIssue]
    definition.set_fewshot_seed(1234)
    definition.build_all_requests()
    assert [item.prompt for item in gsm8k.items] == [request.args[0] for request in definition.instances]
    prompt = gsm8k.items[0].prompt
    assert prompt.count("Question:") == 4 and prompt.endswith("\nAnswer:")
    assert gsm8k.question(prompt) == "A barn holds 1,200 bales and gets 34 more. How many bales are there?"
    assert "Question:" in gsm8k.stop


def test_gsm8k_tunes_on_training_problems_that_are_never_shots(tmp_path: Path) -> None:
    task = make_task("gsm8k", TaskOptions(data=gsm8k_folder(tmp_path), split="tuning"))
    asked = {task.question(item.prompt) for item in task.items}
    shown = {part.partition("\n")[0].strip() for item in task.items for part in item.prompt.split("Question:")[1:-1]}
    assert len(asked) == 3 and not asked & shown
    assert all("Mia" in question for question in asked | shown)
    report = make_task("gsm8k", TaskOptions(data=tmp_path, split="report"))
    assert len(report.items) == 4


# -- math500 through lm-eval --------------------------------------------------------------------------------------------


def test_math500_gold_answers_are_right(math500: Task) -> None:
    texts = [
        f" {item.document['solution']}\nFinal Answer: The final answer is ${item.gold}$. I hope it is correct."
        for item in math500.items
    ]
    assert math500.grade(math500.items, texts) == [{"strict": True, "flex": True}] * 3
    assert math500.items[0].prompt.count("Problem:") == 5
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


def test_math500_halves_are_disjoint_and_whole(tmp_path: Path) -> None:
    data = math500_folder(tmp_path)
    parts = [make_task("math500", TaskOptions(data=data, split=split)).items for split in ("tuning", "report")]
    assert [len(part) for part in parts] == [1, 2]
    assert not {item.id for item in parts[0]} & {item.id for item in parts[1]}


# -- strategyqa ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" It is. So the answer is yes.", "yes"),
        ("So the answer is No", "no"),
        ("the answer is: **yes**", "yes"),
        ("The answer is yes. Wait, the answer is no.", "no"),
        ("yes", None),
        ("So the answer is not known.", None),
        ("So the answer is maybe yes", None),
        ("", None),
        ("yes " * 250_000, None),
    ],
)
def test_strategyqa_answers(text: str, answer: str | None) -> None:
    assert answer_of(text) == answer


def test_strategyqa_examples_come_from_the_data_and_are_not_scored(strategyqa: Task) -> None:
    assert len(strategyqa.items) == 5
    prompt = strategyqa.items[0].prompt
    assert prompt.count("So the answer is") == 6
    assert prompt.startswith("Q: Yes or no: Is 0 even?\nA: Even numbers are twice a number. Fine. So the answer is yes.")
    assert strategyqa.question(prompt) == "Yes or no: Is 6 even?"
    gold = [f" So the answer is {item.gold}." for item in strategyqa.items]
    assert strategyqa.grade(strategyqa.items, gold) == [{"accuracy": True}] * 5
    assert strategyqa.grade(strategyqa.items, ["yes"] * 5) == [{"accuracy": False}] * 5


def test_strategyqa_takes_examples_from_a_file(tmp_path: Path) -> None:
    data, mine = strategyqa_folder(tmp_path / "data", EXAMPLES), tmp_path / "mine.json"
    mine.write_text(json.dumps([{"question": "Yes or no: Is 7 even?", "chain": "7 is 6 + 1.", "answer": "no"}]))
    task = make_task("strategyqa", TaskOptions(data=data, exemplars=mine))
    assert len(task.items) == 10  # all but the one that is shown
    assert task.items[0].prompt.startswith(
        "Q: Yes or no: Is 7 even?\nA: 7 is 6 + 1. So the answer is no.\n\nQ: Yes or no: Is 0"
    )
    mine.write_text('[{"question": "Q"}]')
    with pytest.raises(ValueError, match="needs a JSON list of"):
        make_task("strategyqa", TaskOptions(data=data, exemplars=mine))


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
    keys = [f"k{number}" for number in range(100)]
    ten, twenty = subset(keys, 10, keys), subset(keys, 20, keys)
    assert len(ten) == 10 and set(ten) < set(twenty)
    assert ten == sorted(ten, key=keys.index) and ten != keys[:10]
    assert subset(keys, None, keys) == subset(keys, 1000, keys) == keys
    first, second = halves(keys, keys)
    assert len(first) == len(second) == 50 and sorted(first + second) == sorted(keys)


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
    monkeypatch.setitem(KNOWN, "own.jsonl.gz", "of the released file")
    with pytest.raises(ValueError, match=r"has no own\.jsonl\.gz"):
        read_lines(tmp_path, "own.jsonl.gz")
    (tmp_path / "own.jsonl").write_bytes(content)
    records, file = read_lines(tmp_path, "own.jsonl.gz")
    assert records == [{"a": 1}, {"a": 2}] and (file.source, file.known) == ("own.jsonl", True)
    (tmp_path / "own.jsonl.gz").write_bytes(gzip.compress(content, 1))
    assert read_lines(tmp_path, "own.jsonl.gz")[1].known is True
    assert caplog.text == ""
    (tmp_path / "own.jsonl.gz").write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(ValueError, match="does not hold JSON lines"):
        read_lines(tmp_path, "own.jsonl.gz")


def test_both_forms_of_every_packed_file_are_known() -> None:
    packed = [name for name in KNOWN if name.endswith(".gz")]
    assert len(packed) == 4 and all(name.removesuffix(".gz") in KNOWN for name in packed)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gsm9k", {}, f"there is no task 'gsm9k': known are {', '.join(TASKS)}"),
        ("gsm8k", {"data": Path("/nowhere")}, "--data /nowhere: there is no such folder"),
        ("gsm8k", {"data": Path("/tmp")}, "/tmp has no gsm8k_train.jsonl.gz"),
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
