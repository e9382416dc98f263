"""`loopcd eval --prompts` and `--answers`: what is asked, and grades of texts that were made elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evaluation.fakes import PROTOCOL, gsm8k_folder, strategyqa_folder
from evaluation.test_code_evalplus import DOUBLE, HALF, data_folder
from loopcd.cli import main
from processes import forked
from tools import byte_tokenizer, save_model, tiny_huginn

GOLD = {0: "1,234", 1: "-5", 2: "18", 3: "5"}


def called(*arguments: Any) -> Any:
    return CliRunner().invoke(main, ["eval", *(str(argument) for argument in arguments)])


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def right(number: int) -> dict[str, str]:
    return {"id": f"gsm8k/test/{number}", "text": f" So it is. The answer is {GOLD[number]}."}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context far too short for any prompt, a chat template, and no weights."""
    folder = save_model(tmp_path_factory.mktemp("models") / "short", tiny_huginn(block_size=64))
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = PROTOCOL["chat_template"]
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    return folder


def test_interrupted_grading_promises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("loopcd.evaluation.session.grade_answers", interrupted)
    answers = written(tmp_path / "answers.jsonl", *map(right, GOLD))
    result = called("--task", "gsm8k", "--data", gsm8k_folder(tmp_path), "--answers", answers)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "loopcd: interrupted")


def test_prompts_are_lines_of_json(tmp_path: Path, model: Path) -> None:
    result = called("--task", "gsm8k", "--data", gsm8k_folder(tmp_path), "--model", model, "--prompts")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(line) for line in lines] == [["id", "prompt", "stop", "max_new_tokens", "gold"]] * 4
    assert [(line["id"], line["gold"]) for line in lines] == [(f"gsm8k/test/{n}", gold) for n, gold in GOLD.items()]
    assert lines[0]["stop"] == ["\n\n", "Q:", "</s>"] and lines[0]["max_new_tokens"] == 256


def test_prompts_of_programs_need_neither_consent_nor_weights(tmp_path: Path, model: Path) -> None:
    data = data_folder(tmp_path, "humaneval", DOUBLE, HALF)
    asked = ["--task", "humaneval", "--data", data, "--model", model, "--prompts", "--max-new-tokens", 7]
    chat, plain = called(*asked), called(*asked, "--no-chat")
    (first, _), (bare, _) = ([json.loads(line) for line in each.stdout.splitlines()] for each in (chat, plain))
    assert first["prompt"].startswith("<|im_start|>user") and first["stop"][-1] == "\n```\n"
    assert bare["prompt"] == DOUBLE["prompt"] and bare["stop"][-1] == "\nassert "
    assert first["gold"] == bare["gold"] == DOUBLE["canonical_solution"] and first["max_new_tokens"] == 7


def test_a_reader_may_see_enough_of_the_prompts() -> None:
    with forked(["eval", "--task", "steps", "--limit", 500, "--prompts"]) as run:
        assert json.loads(run.stdout.readline())["id"] == "steps/test/0"
        run.stdout.close()
        assert run.stderr.read() == b""


def test_answers_are_graded_in_the_schema_of_results(tmp_path: Path) -> None:
    wrong = {"id": "gsm8k/test/3", "text": " 5 and then</s> The answer is 5."}
    answers = written(tmp_path / "mine.jsonl", right(2), right(0), "", right(1), wrong)
    result = called("--task", "gsm8k", "--data", gsm8k_folder(tmp_path), "--answers", answers, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["task"], found["protocol"], found["items"], found["model"]) == ("gsm8k", "paper", 4, "mine.jsonl")
    assert list(found["methods"]) == ["answers"]
    graded = found["methods"]["answers"]
    assert (graded["strict"]["accuracy"], graded["flex"]["accuracy"]) == (0.75, 1.0)
    assert graded["versus_greedy"] is None and graded["tokens_per_second"] is None
    shown = called("--task", "gsm8k", "--data", tmp_path, "--answers", answers)
    assert "answers" in shown.stdout and "75.00" in shown.stdout


def test_of_a_limit_the_other_answers_are_left_out(tmp_path: Path) -> None:
    answers = written(tmp_path / "mine.jsonl", *map(right, GOLD))
    result = called("--task", "gsm8k", "--data", gsm8k_folder(tmp_path), "--answers", answers, "--json", "--limit", 3)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["items"] == 3


def test_programs_made_elsewhere_are_run_with_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = data_folder(tmp_path, "humaneval", DOUBLE, HALF)
    whole = DOUBLE["prompt"] + "\treturn 2 * x\n```\nand so on, def double(x): return 0"
    answers = written(
        tmp_path / "mine.jsonl",
        {"id": "HumanEval/9001", "text": whole},
        {"id": "HumanEval/9002", "text": "\n" + HALF["canonical_solution"]},
    )
    asked = ["--task", "humaneval", "--data", data, "--answers", answers, "--json"]
    refused = called(*asked)
    assert refused.exit_code == 1 and "say --allow-code-execution" in refused.stderr
    result = called(*asked, "--allow-code-execution")
    assert result.exit_code == 0, result.output
    graded = json.loads(result.stdout)["methods"]["answers"]
    assert graded["base"]["accuracy"] == graded["plus"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([right(0), right(1), right(2)], "no text for 'gsm8k/test/3' (1 of 4 items are missing)"),
        ([], "no text for 'gsm8k/test/0' (4 of 4 items are missing)"),
        ([*map(right, GOLD), {"id": "gsm8k/test/4", "text": ""}], "'gsm8k/test/4' is no item of this task (1 such ids)"),
        ([right(0), *map(right, GOLD)], "line 2: 'gsm8k/test/0' stands there twice"),
        (["{"], "line 1 is no JSON"),
        (["[]"], 'line 1 must be {"id": …, "text": …}'),
        ([{"id": "gsm8k/test/0", "text": 5}], 'line 1 must be {"id": …, "text": …}'),
        ([{"id": "gsm8k/test/0"}], 'line 1 must be {"id": …, "text": …}'),
    ],
)
def test_answers_that_do_not_fit_are_refused(tmp_path: Path, lines: list[Any], said: str) -> None:
    answers = written(tmp_path / "mine.jsonl", *lines)
    result = called("--task", "gsm8k", "--data", gsm8k_folder(tmp_path), "--answers", answers)
    assert result.exit_code == 1 and said in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompts", "--answers", "x"], "--answers has no use with --prompts"),
        (["--prompts", "--methods", "greedy"], "--methods has no use with --prompts"),
        (["--answers", "x", "--out", "y"], "--out has no use with --answers"),
        (["--answers", "nowhere.jsonl"], "--answers nowhere.jsonl: there is no such file"),
        (["--no-chat"], "--no-chat: only humaneval and mbpp have a chat prompt, steps has none"),
        (["--settings", "paper"], "--settings paper: the paper has no setting for tiny-huginn; its models are"),
        (
            ["--settings", "paper", "--model", "ByteDance/Ouro-1.4B"],
            "--settings paper: the paper has no setting for the task steps; its tasks are gsm8k, math500",
        ),
        (
            ["--settings", "paper", "--model", "ByteDance/Ouro-1.4B-Thinking", "--task", "gsm8k"],
            "--settings paper: the paper has no setting for ByteDance/Ouro-1.4B-Thinking",
        ),
        (
            ["--settings", "paper", "--model", "ByteDance/Ouro-1.4B", "--task", "gsm8k", "--num-loops", "3"],
            "--num-loops 3: with --settings paper all loops of the model are run",
        ),
        (["--settings", "best"], "'best' is not 'paper'"),
    ],
)
def test_what_has_no_use_is_said_in_a_sentence(arguments: list[str], said: str) -> None:
    result = called(*arguments)
    assert result.exit_code in (1, 2) and said in result.stderr and "Traceback" not in result.output


def test_a_template_that_fails_is_said_before_anything_is_loaded(tmp_path: Path, model: Path) -> None:
    data = data_folder(tmp_path, "mbpp", DOUBLE)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('only users here') }}"
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    result = called("--task", "mbpp", "--data", data, "--model", tmp_path, "--allow-code-execution")
    assert result.exit_code == 1
    assert "fails to render (only users here): mend it, or say --no-chat" in result.stderr


def test_the_examples_of_strategyqa_may_lie_elsewhere(tmp_path: Path) -> None:
    data = strategyqa_folder(tmp_path / "data")
    mine = tmp_path / "mine.json"
    mine.write_text('[{"question": "Q", "chain": "c"}]')
    result = called("--task", "strategyqa", "--data", data, "--exemplars", mine)
    assert result.exit_code == 1 and "example 1 has no text 'answer'; each needs question, chain, answer" in result.stderr
