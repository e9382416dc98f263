"""What the command line says without torch, and that importing loopcd waits for nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import loopcd
from loopcd.models.names import local_folder

SOURCES = str(Path(__file__).parents[1] / "src")
CALL = """
import sys
from loopcd.cli import main
try:
    main(sys.argv[1:])
finally:
    print("slow:", *sorted({"torch", "transformers", "numpy", "scipy"} & set(sys.modules)))
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("--help", 0, "Commands:"),
        ("eval --help", 0, "--allow-code-execution"),
        ("--version", 0, loopcd.__version__),
        ("generate hi --nonsense", 2, "No such option"),
        ("generate hi --model nowhere", 1, "there is no model 'nowhere'"),
        ("generate hi --method greedy --strength 1", 2, "--strength is a setting of loopcd, noisecd, not of greedy"),
        ("eval --task nothing", 1, "there is no task 'nothing'"),
        ("eval --task humaneval", 1, "--allow-code-execution"),
        ("sweep --task mbpp", 1, "--allow-code-execution"),
        ("reproduce table2 --task nothing", 1, "there is no task 'nothing'"),
        ("lens --json", 2, "--json goes with --export"),
        ("serve nowhere", 1, "there is no model 'nowhere'"),
    ],
)
def test_help_and_refusals_need_no_torch(arguments: str, status: int, said: str) -> None:
    done = python(CALL, *arguments.split())
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, "slow:"), done.stderr
    assert said in done.stdout + done.stderr


def test_dir_shows_what_there_is() -> None:
    assert {*loopcd.__all__, "__version__"} == set(dir(loopcd))


def test_a_folder_of_a_training_run_points_to_its_model(tmp_path: Path) -> None:
    (tmp_path / "run" / "model").mkdir(parents=True)
    assert local_folder(tmp_path / "run") == tmp_path / "run"  # what is missing there is told when it is read
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"run has no config.json, but .*run/model has: name that one"):
        local_folder(tmp_path / "run")
