"""The judge: in a place of its own it runs the reference solution, and has EvalPlus compare the program's results with its.

EvalPlus's check is given a function that asks the program's place instead of computing. So its comparison, special oracles and
time limits run here, where the program cannot reach them, on results that are plain data.
"""

import json
import os
import pickle
import select
import signal
import uuid
from collections.abc import Callable
from typing import Any, BinaryIO

from evalplus.data.mbpp import mbpp_deserialize_inputs  # pyright: ignore[reportMissingImports]
from evalplus.eval import PASS  # pyright: ignore[reportMissingImports]
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS  # pyright: ignore[reportMissingImports]
from evalplus.eval.utils import TimeoutException  # pyright: ignore[reportMissingImports]
from evalplus.gen.util import trusted_exec  # pyright: ignore[reportMissingImports]

from . import plain
from .checking import Checked, Tests, check, remarks
from .contest import SANITISE_SECONDS
from .limits import Limits
from .talk import BASE, CHEATED, DECOY, PLUS, RAISED, READY, RETURNED, Talk

CHEAT = "cheated"
_SLOW, _FORGED = 1, 2  # remarks


def judge(dataset: str, data: int, place: tuple[int, int], limits: Limits, talk: Talk) -> Callable[[BinaryIO], None]:
    """What runs in the judge's place. The problem is read there, from `place` (offset, length) of the open file `data`."""

    def inside(answer: BinaryIO) -> None:
        os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = str(limits.memory)
        problem = _problem(dataset, os.pread(data, place[1], place[0]))
        with os.fdopen(talk.asking, "wb") as asking:
            verdicts = _Judge(dataset, problem, asking, talk).verdicts()
        answer.write(json.dumps(verdicts).encode() + b"\n")

    return inside


def _problem(dataset: str, line: bytes) -> dict[str, Any]:
    problem = json.loads(line)
    if dataset == "mbpp":
        for part in ("base_input", "plus_input"):
            problem[part] = mbpp_deserialize_inputs(problem["task_id"], problem[part])
    return problem


class _Judge:
    def __init__(self, dataset: str, problem: dict[str, Any], asking: BinaryIO, talk: Talk) -> None:
        self.dataset, self.problem, self.asking, self.talk = dataset, problem, asking, talk

    def verdicts(self) -> dict[str, str]:
        """By part. A program that cheated in one has cheated."""
        self._ask(self.problem["entry_point"])
        tests = {"base": self._tests("base")}
        if not self._program_there():
            return {"base": "fail", "plus": "fail"}
        found: dict[str, str] = {}
        for number, part in ((BASE, "base"), (PLUS, "plus")):
            tests[part] = tests.get(part) or self._tests(part)
            checked = self._compared(number, tests[part])
            if self._cheated(checked, tests[part]):
                return {"base": CHEAT, "plus": CHEAT}
            found[part] = checked.verdict
        return found

    def _tests(self, part: str) -> Tests:
        """With the reference's results, found now: the time limits follow from how long it takes at this machine's load."""
        name, inputs = self.problem["entry_point"], self.problem[f"{part}_input"]
        reference = self.problem["prompt"] + self.problem["canonical_solution"]
        not_none = self.dataset == "mbpp" and name in MBPP_OUTPUT_NOT_NONE_TASKS
        expected, seconds = trusted_exec(reference, inputs, name, record_time=True, output_not_none=not_none)
        assert isinstance(expected, list) and isinstance(seconds, list)  # since record_time is asked for
        return Tests(self.dataset, name, inputs, expected, seconds, self.problem["atol"])

    def _program_there(self) -> bool:
        reply = self.talk.reading[BASE]
        return bool(select.select([reply], [], [], 2 * SANITISE_SECONDS)[0]) and os.read(reply, 1) == READY

    def _compared(self, part: int, tests: Tests) -> Checked:
        self._ask((part, tests.inputs))
        _REPLIES[:] = [os.fdopen(self.talk.reading[part], "rb")]
        return check(tests, f"from {__name__} import connected\n{tests.entry_point} = connected()")

    def _cheated(self, checked: Checked, tests: Tests) -> bool:
        """Whether it forged a reply, or has EvalPlus, where both run in one process, take a word for the right result."""
        if checked.remark == _FORGED:
            return True
        if checked.verdict == PASS or checked.remark == _SLOW or not checked.in_time:
            return False
        word = f"decoy-{uuid.uuid4().hex}"
        decoy = Tests(self.dataset, tests.entry_point, tests.inputs, [word] * len(tests.inputs), tests.seconds, tests.tolerance)
        self._ask((DECOY, (self._bait(word), decoy)))
        return os.read(self.talk.reading[DECOY], 1) == CHEATED

    def _bait(self, word: str) -> dict[str, Any]:
        """The problem with a solution that returns the word."""
        name, body = self.problem["entry_point"], f"    return {word!r}\n"
        solution = body if self.dataset == "humaneval" else f"\ndef {name}(*arguments):\n{body}"
        return {**self.problem, "canonical_solution": solution}

    def _ask(self, what: Any) -> None:
        try:
            pickle.dump(what, self.asking)
            self.asking.flush()
        except BrokenPipeError:  # its place is gone: what is read from there says so
            pass


# -- within EvalPlus's check: the function that stands in for the program's ---------------------------------------------

_REPLIES: list[BinaryIO] = []


def connected() -> Callable[..., Any]:
    """The function, once the program's place has the program's."""
    said = _said()
    if said == READY:
        return _remote
    if said != RAISED:
        remarks().value = _FORGED
    raise RuntimeError("the program could not be defined")


def _remote(*_: Any) -> Any:
    """The next result from the program's place: both sides go through the same inputs."""
    try:
        said = _said()
        signal.setitimer(signal.ITIMER_REAL, 0)  # the program is done; to bring a large result here is our own time
    except TimeoutException:
        remarks().value = _SLOW
        raise
    if said == RAISED:
        raise RuntimeError("the program raised an error")
    try:
        if said != RETURNED:
            raise plain.Forged(said)
        return plain.read(_REPLIES[0])
    except plain.Forged:
        remarks().value = _FORGED
        raise


def _said() -> bytes:
    said = _REPLIES[0].read(1)
    if not said:  # the program's process left; EvalPlus calls that a timeout
        os._exit(1)
    return said
