"""The command line, as a new user would try it, on tiny random models in folders."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import loopcd
from decoding.labels import LABEL_EOS, LABEL_PAD, labelled_tokenizer
from loopcd.cli import build_method, main
from loopcd.evaluation.engine import plain
from processes import forked
from tools import tiny_huginn, tiny_ouro

METHODS = ("greedy", "loopcd", "loopguidance", "noisecd", "mti", "selfeval")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Huginn, an Ouro, and a Huginn with a context that no test fills."""
    made = {}
    size = {"vocab_size": 260, "pad_token_id": LABEL_PAD, "eos_token_id": LABEL_EOS}
    for name, model in {
        "huginn": tiny_huginn(2, **size),
        "ouro": tiny_ouro(2, **size),
        "endless": tiny_huginn(2, **{**size, "eos_token_id": None}, block_size=1_000_000),
    }.items():
        made[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(made[name])
        labelled_tokenizer().save_pretrained(made[name])
    return made


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def good(*arguments: object, stdin: str | None = None) -> str:
    """Standard output of a call that works and says nothing on standard error."""
    result = call(*arguments, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def printed_json(*arguments: object, stdin: str | None = None) -> Any:
    """The one JSON object on standard output."""
    out = good(*arguments, "--json", stdin=stdin)
    assert out.endswith("}\n") and out.count("\n") == 1
    return json.loads(out)


def as_dict(prompt: str, made: loopcd.Generation) -> dict[str, Any]:
    fields = ("text", "token_ids", "finish_reason", "loops", "contested", "touched")
    return {"prompt": prompt, **{name: getattr(made, name) for name in fields}}


# loopcd generate: methods


@pytest.mark.parametrize("family", ["huginn", "ouro"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_both_families(folders: dict[str, Path], family: str, method: str) -> None:
    found = printed_json("generate", "--model", folders[family], "--method", method, "--max-new-tokens", 6, "some words")
    assert set(found) == {"model", "method", "settings", "results"}
    assert (found["model"], found["method"]) == (str(folders[family]), method)
    model, tokenizer = loopcd.load(folders[family])
    made = loopcd.generate(model, tokenizer, "some words", build_method(method, {}), max_new_tokens=6)
    assert found["results"] == [as_dict("some words", made)]


def test_loopcd_is_the_default_method(folders: dict[str, Path]) -> None:
    found = printed_json("generate", "--model", folders["ouro"], "--max-new-tokens", 4, "some words")
    assert (found["method"], found["settings"]["amateur_loop"], found["settings"]["strength"]) == ("loopcd", 2, 0.2)
    model, tokenizer = loopcd.load(folders["ouro"])
    made = loopcd.generate(model, tokenizer, "some words", max_new_tokens=4)  # in Python too
    assert made == loopcd.generate(model, tokenizer, "some words", loopcd.LoopCD(), max_new_tokens=4)
    assert found["results"] == [as_dict("some words", made)]


FLAGS = [
    ("loopcd", ["--amateur-loop", "3"], loopcd.LoopCD(3)),
    ("loopcd", ["--strength", "0.9", "--plausibility", "0.5"], loopcd.LoopCD(None, 0.9, 0.5)),
    ("loopcd", ["--coda", "own"], loopcd.LoopCD(coda="own")),
    ("loopcd", ["--where", "easy numeric"], loopcd.LoopCD(where="easy numeric")),
    (
        "loopcd",
        ["--amateur-loop", "1", "--exit-threshold", "0.5", "--min-loops", "2", "--exited", "skip"],
        loopcd.LoopCD(1, exit=loopcd.EarlyExit(0.5, 2, exited="skip")),
    ),
    ("loopguidance", ["--early-loop", "2", "--weight", "0.5"], loopcd.LoopGuidance(2, 0.5)),
    ("noisecd", ["--noise", "2", "--strength", "0.7", "--plausibility", "0.2"], loopcd.NoiseCD(2.0, 0.7, 0.2)),
    ("mti", ["--entropy-threshold", "3.5", "--guidance", "4"], loopcd.MTI(3.5, 4.0)),
    ("mti", ["--negative-prompt", "BAD", "--plausibility", "0.3"], loopcd.MTI(negative_prompt="BAD", plausibility=0.3)),
    ("selfeval", ["--candidates", "2"], loopcd.SelfEval(2)),
    ("greedy", ["--exit-threshold", "0.6"], loopcd.Greedy(exit=loopcd.EarlyExit(0.6))),
    ("loopcd", ["--exit-threshold", "0.6"], loopcd.LoopCD(exit=loopcd.EarlyExit(0.6, 2))),
]


@pytest.mark.parametrize(("name", "flags", "method"), FLAGS)
def test_settings_are_flags(folders: dict[str, Path], name: str, flags: list[str], method: Any) -> None:
    options = ["--model", folders["huginn"], "--method", name, *flags, "--max-new-tokens", 8]
    found = printed_json("generate", *options, "some words")
    model, tokenizer = loopcd.load(folders["huginn"])
    assert found["settings"] == plain(method.settled(model))
    made = loopcd.generate(model, tokenizer, "some words", method, max_new_tokens=8)
    assert found["results"] == [as_dict("some words", made)]


def test_the_gate_is_a_flag(folders: dict[str, Path]) -> None:
    options = ("--exit-criterion", "gate", "--exit-threshold", 0.6, "--method", "greedy", "--max-new-tokens", 6)
    found = printed_json("generate", "--model", folders["ouro"], *options, "some words")
    assert min(found["results"][0]["loops"]) < 4


def test_options_of_the_run_are_flags(folders: dict[str, Path]) -> None:
    flags = [
        "--temperature",
        1.3,
        "--top-p",
        0.9,
        "--seed",
        5,
        "--init-seed",
        2,
        "--num-loops",
        3,
        "--stop",
        "e",
        "--stop",
        "a",
    ]
    found = printed_json("generate", "--model", folders["huginn"], *flags, "--max-new-tokens", 9, "some words")
    model, tokenizer = loopcd.load(folders["huginn"])
    options: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9, "seed": 5, "init_seed": 2, "num_loops": 3, "stop": ["e", "a"]}
    made = loopcd.generate(model, tokenizer, "some words", loopcd.LoopCD(), max_new_tokens=9, **options)
    assert found["results"] == [as_dict("some words", made)]


# loopcd generate: prompts and output


def texts(folder: Path, prompts: list[str]) -> list[str]:
    model, tokenizer = loopcd.load(folder)
    return [made.text for made in loopcd.generate(model, tokenizer, prompts, loopcd.LoopCD(), max_new_tokens=5)]


def test_a_prompt_is_continued_on_standard_output(folders: dict[str, Path]) -> None:
    out = good("generate", "some words", "--model", folders["ouro"], "--max-new-tokens", 5)
    assert out == texts(folders["ouro"], ["some words"])[0] + "\n"


def test_prompts_from_a_file_from_standard_input_and_as_json_lines(folders: dict[str, Path], tmp_path: Path) -> None:
    prompts = ["one prompt", "{ not JSON", "two\nlines", "one\u2028line"]
    objects = [json.dumps({"prompt": prompt, "id": 7}, ensure_ascii=False) for prompt in prompts[2:]]
    lines = f"{prompts[0]}\n\n{prompts[1]}\n{objects[0]}\n{objects[1]}\n"
    (tmp_path / "prompts.txt").write_text(lines)
    options = ("--model", folders["ouro"], "--max-new-tokens", 5)
    wanted = texts(folders["ouro"], prompts)
    for source, stdin in ((tmp_path / "prompts.txt", None), ("-", lines)):
        found = printed_json("generate", *options, "--file", source, stdin=stdin)
        assert [(each["prompt"], each["text"]) for each in found["results"]] == list(zip(prompts, wanted, strict=True))
    out = good("generate", *options, "--file", "-", stdin=lines)
    assert out == "\n".join(f"# {prompt}\n{text}\n" for prompt, text in zip(prompts, wanted, strict=True))
    assert good("generate", *options, "--file", "-", "--batch-size", 1, stdin=lines) == out


def test_the_mark_at_the_beginning_of_a_file_is_no_part_of_a_prompt(folders: dict[str, Path], tmp_path: Path) -> None:
    lines = json.dumps({"prompt": "one prompt"}) + "\n"
    (tmp_path / "prompts.jsonl").write_text(lines, encoding="utf-8-sig")  # as some editors write it
    options = ("generate", "--model", folders["ouro"], "--max-new-tokens", 5)
    for source, stdin in ((tmp_path / "prompts.jsonl", None), ("-", "\ufeff" + lines)):
        found = printed_json(*options, "--file", source, stdin=stdin)
        assert [each["prompt"] for each in found["results"]] == ["one prompt"]


@pytest.mark.parametrize("prompt", ["some words", "Question: how many?\nAnswer:", '{"prompt": 1}'])
def test_standard_input_is_one_prompt(folders: dict[str, Path], prompt: str) -> None:
    out = good("generate", "--model", folders["ouro"], "--max-new-tokens", 5, stdin=prompt + "\n")
    assert out == texts(folders["ouro"], [prompt])[0] + "\n"


@pytest.mark.parametrize("method", ["greedy", "loopcd", "loopguidance", "noisecd", "mti"])
def test_streaming_prints_the_same_text(folders: dict[str, Path], method: str) -> None:
    options = ("generate", "some words", "--model", folders["huginn"], "--method", method, "--max-new-tokens", 12)
    assert good(*options, "--stream") == good(*options)


# loopcd generate: what goes wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "'magic' is not one of"),
        (["--sauce", "2"], "No such option"),
        (["--strength", "much"], "'much' is not a valid float"),
        (["--method", "greedy", "--strength", "0.3"], "--strength is a setting of loopcd, noisecd, not of greedy"),
        (["--method", "mti", "--amateur-loop", "2"], "--amateur-loop is a setting of loopcd, not of mti"),
        (["--file", "prompts.txt"], "either PROMPT or --file, not both"),
        (["--stream", "--json"], "--stream prints the text of one prompt"),
        (["another prompt"], "unexpected extra argument"),
    ],
)
def test_bad_usage(arguments: list[str], message: str) -> None:
    result = call("generate", "some words", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr and "Usage:" in result.stderr and not result.stdout


@pytest.mark.parametrize("options", [["--thinking"], ["--show-thinking"]])
def test_thinking_is_for_conversations(folders: dict[str, Path], options: list[str]) -> None:
    result = call("generate", "some words", "--model", folders["ouro"], *options)
    assert result.exit_code == 2 and "--thinking and --show-thinking are for conversations" in result.stderr


def test_what_standard_output_cannot_hold_is_replaced(folders: dict[str, Path], tmp_path: Path) -> None:
    options = ["--limit", "2", "--max-new-tokens", "3", "--model", str(folders["ouro"]), "--out", str(tmp_path / "run")]
    made = subprocess.run(
        [sys.executable, "-m", "loopcd.cli", "eval", *options],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert made.returncode == 0 and b"W?R" in made.stdout, made.stderr


def test_streaming_several_prompts_is_bad_usage(folders: dict[str, Path]) -> None:
    assert call("generate", "--model", folders["ouro"], "--stream", "--file", "-", stdin="one\ntwo\n").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--amateur-loop", "4"], "amateur_loop=4: from 1 to 3"),
        (["--amateur-loop", "0"], "amateur_loop=0: a whole number of at least 1"),
        (["--strength", "-1"], "strength=-1.0: a number of at least 0"),
        (["--strength", "nan"], "strength=nan"),
        (["--plausibility", "0"], "plausibility=0.0: above 0, and at most 1"),
        (["--where", "nowhere"], "where='nowhere'"),
        (["--min-loops", "1"], "min_loops=1 could leave at or before amateur_loop=1"),
        (["--exit-threshold", "-2"], "threshold=-2.0"),
        (["--method", "noisecd", "--noise", "-1"], "noise=-1.0"),
        (["--method", "mti", "--entropy-threshold", "-1"], "entropy_threshold=-1.0"),
        (["--method", "selfeval", "--candidates", "0"], "candidates=0"),
        (["--method", "selfeval", "--stream"], "SelfEval cannot be streamed"),
        (["--exit-criterion", "gate", "--min-loops", "2"], 'criterion="gate": HuginnForCausalLM has no exit gate'),
        (["--temperature", "-1"], "temperature=-1.0"),
        (["--temperature", "-1", "--stream"], "temperature=-1.0"),
        (["--top-p", "2"], "top_p=2.0"),
        (["--top-p", "0.5"], "--top-p 0.5: at --temperature 0 nothing is drawn"),
        (["--num-loops", "1"], "num_loops=1: LoopCD needs 2 or more, to have an early one"),
        (["--stop", ""], "stop=('',)"),
        (["--max-new-tokens", "0"], "--max-new-tokens 0: a whole number of at least 1"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--num-loops", "0"], "--num-loops 0"),
        (["--dtype", "float8"], "dtype='float8': one of float32"),
        (["--device", "abacus"], "device='abacus' cannot be used here"),
        (["--device", "meta"], "device='meta' cannot be used here"),
        (["--device", "hpu"], "device='hpu' cannot be used here"),
    ],
)
def test_bad_values_are_one_sentence(folders: dict[str, Path], arguments: list[str], message: str) -> None:
    failed(message, "generate", "some words", "--model", folders["huginn"], *arguments)


def failed(message: str, *arguments: object, stdin: str | None = None) -> None:
    """Exit status 1, and on standard error one line that says so, with or without --json."""
    for more in ((), ("--json",)) if "--stream" not in arguments else ((),):
        result = call(*arguments, *more, stdin=stdin)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("loopcd: ") and message in result.stderr
        assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr and not result.stdout


def test_models_and_prompts_that_are_not_there(folders: dict[str, Path], tmp_path: Path) -> None:
    failed("there is no model 'nowhere'", "generate", "hi", "--model", "nowhere")
    failed("'no/where' is no folder here and could not be had from the hub", "generate", "hi", "--model", "no/where")
    failed("config.json", "generate", "hi", "--model", tmp_path)
    model = ("--model", folders["ouro"])
    failed("missing.txt", "generate", *model, "--file", tmp_path / "missing.txt")
    failed("standard input holds no prompt", "generate", *model, stdin="\n \n")
    said = "standard input, line 2: a JSON object needs a text in its field `prompt`"
    failed(said, "generate", *model, "--file", "-", stdin='a\n{"p": 1}\n')
    failed("the prompt is empty", "generate", *model, "")
    failed("the prompt is empty", "generate", *model, "\n ")
    failed("300 tokens: the model's context of 256 leaves room for 255", "generate", *model, "x" * 300)
    failed("init_seed", "generate", *model, "--init-seed", 3, "hi")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    failed("latin.txt is not a text in UTF-8", "generate", *model, "--file", tmp_path / "latin.txt")


def test_a_file_of_nested_json_is_a_text_like_any_other(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "nested").write_text('{"prompt":' * 50_000)
    failed("500000 tokens: the model's context", "generate", "--model", folders["ouro"], "--file", tmp_path / "nested")


def test_a_mistake_of_our_own_is_a_sentence_and_can_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AttributeError("the first line\nthe second")

    monkeypatch.setattr("loopcd.models.catalogue.describe", broken)
    told = "AttributeError: the first line (a mistake in loopcd or in a library that it uses; LOOPCD_DEBUG=1 shows where)"
    failed(told, "models")
    monkeypatch.setenv("LOOPCD_DEBUG", "1")
    assert isinstance(call("models").exception, AttributeError)


def test_a_librarys_message_of_several_lines_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("the first line\nthe second")

    monkeypatch.setattr("loopcd.models.catalogue.describe", broken)
    failed("loopcd: the first line the second", "models")


def test_a_missing_file_is_named_without_a_number(folders: dict[str, Path]) -> None:
    result = call("generate", "--model", folders["ouro"], "--file", "missing.txt")
    assert result.stderr == "loopcd: missing.txt: No such file or directory\n"


def test_help_names_everything() -> None:
    assert "generate" in good("--help") and "models" in good("-h")
    shown = good("generate", "--help")
    for flag in ("--model", "--method", "--amateur-loop", "--strength", "--where", "--exit-threshold", "--stream", "--json"):
        assert flag in shown
    assert loopcd.__version__ in good("--version")


# loopcd models


def test_models_as_a_table_and_as_json(folders: dict[str, Path]) -> None:
    table = good("models")
    for name in ("tomg-group-umd/huginn-0125", "ByteDance/Ouro-1.4B", "sapientinc/HRM-Text-1B"):
        assert name in table
    found = {row["name"]: row for row in printed_json("models")["models"]}
    huginn, ouro = found["tomg-group-umd/huginn-0125"], found["ByteDance/Ouro-1.4B"]
    assert (huginn["loops"], huginn["amateur_loop"], huginn["strength"]) == (32, 8, 0.3)
    assert (ouro["loops"], ouro["amateur_loop"], ouro["strength"]) == (4, 2, 0.2)
    assert huginn["parameters"] == pytest.approx(3.5e9, rel=0.15) and ouro["parameters"] == pytest.approx(1.4e9, rel=0.15)
    mine = printed_json("models", folders["ouro"], "--context", 100, "--dtype", "float32")
    assert (mine["context"], mine["dtype"], [row["family"] for row in mine["models"]]) == (100, "float32", ["ouro"])
    # 4 loops × 2 layers × keys and values × 32 wide × 4 bytes × 100 tokens
    assert mine["models"][0]["cache_bytes"] == 4 * 2 * 2 * 32 * 4 * 100


def test_models_that_are_none() -> None:
    failed("there is no model 'nowhere'", "models", "nowhere")
    failed("--context 0", "models", "--context", 0)
    failed("dtype='int3'", "models", "--dtype", "int3")
    failed("--num-loops 0", "models", "--num-loops", 0)


@pytest.mark.parametrize(("options", "compiled"), [([], True), (["--minutes", 0.3], False), (["--minutes", 20], True)])
def test_a_short_run_is_not_spent_on_compiling(monkeypatch: pytest.MonkeyPatch, options: list[Any], compiled: bool) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("loopcd.training.train", lambda *_, **given: asked.update(given))
    assert call("train", "tiny-ouro", "--out", "nowhere", *options).exit_code == 0
    assert asked["compiled"] is compiled


# In a process of its own


# `python -m loopcd.cli`, once transformers, which comes after loopcd, has been asked for our model types
WHOLE = """
import runpy
import loopcd
from transformers import AutoConfig, AutoModelForCausalLM
for name in ("huginn_raven", "ouro", "nanbeige", "parcae"):
    config = AutoConfig.for_model(name)
    assert type(config).__module__ == "loopcd.models.configs", type(config)
    assert type(config) in AutoModelForCausalLM._model_mapping
runpy.run_module("loopcd.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_fresh_process_registers_model_types_and_prints_json_and_nothing_else(folders: dict[str, Path]) -> None:
    arguments = ["generate", "--model", str(folders["ouro"]), "--max-new-tokens", "5", "--json", "--file", "-"]
    command = [sys.executable, "-c", WHOLE, *arguments]
    done = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [each["prompt"] for each in json.loads(done.stdout)["results"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("closed", "arguments", "status", "said"),
    [("<&-", ["generate"], 1, "loopcd: standard input holds no prompt\n"), (">&-", ["models", "tiny-ouro"], 0, "")],
)
def test_a_closed_stream_is_an_empty_one(closed: str, arguments: list[str], status: int, said: str) -> None:
    command = [sys.executable, "-m", "loopcd.cli", *arguments]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)


def test_an_interrupted_process(folders: dict[str, Path]) -> None:
    with forked(["generate", "hi", "--model", folders["endless"], "--max-new-tokens", 900_000, "--stream"]) as process:
        assert os.read(process.stdout.fileno(), 1)  # it has begun to write
        process.signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b"loopcd: interrupted\n"
        assert process.wait() == 130
