"""Two hosts: the commands of docs/serving.md in two network namespaces, a client in a third, by `scripts/two-hosts`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


def test_one_server_on_two_hosts(tmp_path: Path) -> None:
    given = {"LOOPCD": f"{sys.executable} -m loopcd.cli", "PYTHON": sys.executable, "LOGS": str(tmp_path)}
    made = subprocess.run(
        [ROOT / "scripts" / "two-hosts", "tiny-ouro"],
        env={**os.environ, **given, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if made.returncode == 77:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr[-3000:]
    assert "32 answers" in made.stdout


def test_the_commands_are_those_of_the_documentation() -> None:
    """What the script hands to `loopcd serve` stands there too, but for the numbers of replicas."""
    documented = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    script = (ROOT / "scripts" / "two-hosts").read_text(encoding="utf-8")
    for flag in (
        "--host 0.0.0.0",
        "--data-parallel-size-local",
        "--data-parallel-address",
        "--data-parallel-rpc-port 13345",
        "--data-parallel-start-rank",
        "--headless",
        "--data-parallel-backend ray",
    ):
        assert flag in documented and flag in script, flag
