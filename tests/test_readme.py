"""What README shows as printed is what its examples print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_examples_with_their_output() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("code", "shown"), EXAMPLES)
def test_an_example_prints_what_is_shown(code: str, shown: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == shown
