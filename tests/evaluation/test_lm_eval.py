"""lm-eval with our model: the same as its own HF model under greedy, and the methods of ours beside."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lm_eval import evaluator
from lm_eval.models import huggingface
from lm_eval.tasks import TaskManager

import loopcd
from loopcd.cli import main
from loopcd.evaluation.lm_eval_model import LoopedLM
from tools import save_model, tiny_huginn, tiny_ouro

pytestmark = pytest.mark.usefixtures("in_places")

HFLM: Any = huggingface.HFLM  # whose type lm-eval's decorator hides, as it does for the next
simple_evaluate: Any = evaluator.simple_evaluate

ITEMS = [
    {"question": "What is 2 + 2?", "answer": "4", "choices": ["3", "4", "five"], "gold": 1},
    {
        "question": "Which of these is a longer word than the others, or are they alike?",
        "answer": "no",
        "choices": ["no", "b"],
        "gold": 0,
    },
    {"question": "x", "answer": "y", "choices": ["y", "z z", "two words"], "gold": 0},
]
TASK = """
task: tiny_{kind}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {items}}}, cache_dir: {cache}}}
test_split: test
output_type: {kind}
doc_to_text: "Q: {{{{question}}}}\\nA:"
{rest}
"""
REST = {
    "generate_until": 'doc_to_target: "{{answer}}"\n'
    'generation_kwargs: {until: ["e"], max_gen_toks: 24}\n'
    "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]",
    "multiple_choice": "doc_to_target: gold\ndoc_to_choice: choices\n"
    "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]",
    "loglikelihood_rolling": 'doc_to_target: "{{question}}"\n'
    "metric_list: [{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]",
}


@pytest.fixture(autouse=True)
def _no_report_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval describes the machine in its results, which takes it seconds."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three tasks of lm-eval's making on three local items."""
    folder = tmp_path_factory.mktemp("tasks")
    items = folder / "items.jsonl"
    items.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    for kind, rest in REST.items():
        (folder / f"{kind}.yaml").write_text(TASK.format(kind=kind, items=items, cache=folder / "cache", rest=rest))
    return folder


@pytest.fixture(scope="module", params=["huginn", "ouro"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = {"huginn": tiny_huginn, "ouro": tiny_ouro}[request.param]()
    return str(save_model(tmp_path_factory.mktemp(request.param), made))


def samples(model: Any, tasks: Path, *kinds: str) -> dict[str, list[Any]]:
    """What the model answered to each request, by task."""
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    names = [f"tiny_{kind}" for kind in kinds or REST]
    found = simple_evaluate(
        model=model, tasks=names, task_manager=manager, log_samples=True, bootstrap_iters=0, verbosity="ERROR"
    )
    assert found is not None
    return {name: [sample["resps"] for sample in found["samples"][name]] for name in names}


def flat(answers: Any) -> list[Any]:
    return [leaf for part in answers for leaf in flat(part)] if isinstance(answers, list | tuple) else [answers]


def test_greedy_is_lm_evals_own_hf_model(checkpoint: str, tasks: Path) -> None:
    ours = samples(LoopedLM(checkpoint, method="greedy", batch_size=2), tasks)
    theirs = samples(HFLM(checkpoint, device="cpu", batch_size=2, max_length=256), tasks)
    assert ours["tiny_generate_until"] == theirs["tiny_generate_until"]
    assert len(set(map(str, ours["tiny_generate_until"]))) > 1
    for name in ("tiny_multiple_choice", "tiny_loglikelihood_rolling"):
        assert flat(ours[name]) == pytest.approx(flat(theirs[name]), abs=1e-4)


def test_loopcd_writes_what_generate_writes_and_likelihoods_stay_the_experts(checkpoint: str, tasks: Path) -> None:
    greedy = samples(LoopedLM(checkpoint, method="greedy", batch_size=3), tasks)
    settings = {"amateur_loop": 2, "strength": 0.9, "plausibility": 0.01}
    ours = samples(LoopedLM(checkpoint, method="loopcd", batch_size=3, **settings), tasks)
    assert ours["tiny_multiple_choice"] == greedy["tiny_multiple_choice"]
    assert ours["tiny_loglikelihood_rolling"] == greedy["tiny_loglikelihood_rolling"]
    assert ours["tiny_generate_until"] != greedy["tiny_generate_until"]

    model, tokenizer = loopcd.load(checkpoint)
    prompts = [f"Q: {item['question']}\nA:" for item in ITEMS]
    wanted = loopcd.generate(model, tokenizer, prompts, loopcd.LoopCD(**settings), max_new_tokens=24, stop=["e"])
    assert flat(ours["tiny_generate_until"]) == [made.text for made in wanted]


@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "noisecd", "noise": 0.7},
        {"method": "mti", "entropy_threshold": 0.5},
        {"method": "loopcd", "draft_length": 3},
        {"method": "greedy", "exit_threshold": 0.1, "num_loops": 6},
    ],
    ids=str,
)
def test_other_methods_generate(tmp_path: Path, tasks: Path, arguments: dict[str, Any]) -> None:
    folder = str(save_model(tmp_path, tiny_huginn()))
    made = samples(LoopedLM(folder, batch_size=2, **arguments), tasks, "generate_until")
    assert len(flat(made["tiny_generate_until"])) == len(ITEMS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"method": "nosuch"}, "one of greedy, loopcd"),
        ({"method": "greedy", "amateur_loop": 2}, "no setting of greedy"),
        ({"method": "loopcd", "amatuer_loop": 2}, "amatuer_loop=2"),
        ({"method": "loopcd", "strength": -1}, "strength=-1"),
        ({"peft": "some/adapter"}, "peft"),
        ({"revision": "v2"}, "revision='v2'"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    folder = str(save_model(tmp_path, tiny_huginn()))
    with pytest.raises(ValueError, match=says):
        LoopedLM(folder, **arguments)


def test_the_command_hands_over_to_lm_evals(tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_model(tmp_path / "model", tiny_huginn())
    # without the thousands of tasks that come with lm-eval, which take it long to list
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # lm-eval sets it
    arguments = ["lm-eval", "--tasks", "tiny_generate_until", "--include_path", str(tasks)]
    arguments += ["--model_args", f"pretrained={folder},method=loopcd,amateur_loop=2", "--output_path", str(tmp_path / "out")]
    run = CliRunner().invoke(main, arguments)
    assert run.exit_code == 0, run.output
    (report,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(report.read_text())
    assert results["config"]["model"] == "loopcd"
    assert results["config"]["model_args"]["amateur_loop"] == 2
    assert "exact_match,none" in results["results"]["tiny_generate_until"]


def test_without_lm_eval_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "loopcd.evaluation.lm_eval_model")
    for name in ("lm_eval", "lm_eval.api.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(main, ["lm-eval", "--tasks", "gsm8k"])
    assert result.exit_code == 1
    assert "pip install 'loopcd[eval]'" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("given", [["--use_cache", "x"], ["--use_cache=x"], ["-c", "x"], ["--use_c", "x"]])
def test_the_cache_of_pickles_is_refused(given: list[str]) -> None:
    result = CliRunner().invoke(main, ["lm-eval", "--tasks", "gsm8k", *given])
    assert result.exit_code == 1 and "read as pickles" in result.output
