"""Work in a copy of the process: what it gives, and how it ends."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from signal import SIGKILL
from typing import Any

import pytest

from loopcd.evaluation.apart import apart


def test_what_the_work_gives_comes_back() -> None:
    assert apart(lambda: {"strict": True, "text": "é" * 200_000}, 20) == {"strict": True, "text": "é" * 200_000}
    assert apart(lambda: None, 20) is None


def test_nothing_of_it_stays_here(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    assert apart(lambda: seen.append(1) or os.getpid(), 20) != os.getpid()
    assert seen == [] and capfd.readouterr() == ("", "")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(
    "work",
    [
        lambda: time.sleep(600),
        lambda: pow(10, 10**10) and None,  # one long call of C, which hears no alarm
        lambda: len(bytearray(2 << 30)),
        lambda: os.kill(os.getpid(), SIGKILL),
        lambda: os._exit(3),
    ],
    ids=["long", "deaf", "large", "killed", "ended"],
)
def test_what_takes_too_much_gives_nothing(work: Any) -> None:
    assert apart(work, 1, memory=1 << 30) is None


def test_what_it_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError: .*by zero"):
        apart(lambda: 1 // 0, 20)


def test_it_may_be_asked_from_several_threads() -> None:
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(apart, lambda number=number: number**2, 20) for number in range(40)]
        assert [each.result() for each in made] == [number**2 for number in range(40)]
