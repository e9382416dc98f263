"""Grade programs by EvalPlus, each shut in by itself: `python -m isolation.grader`, run by the interpreter that has EvalPlus.

Standard input: a JSON line with the settings, then one for each program. Standard output: a JSON line on the isolation in
force, then one for each program. The data file is the one that EvalPlus's own variables name. The reference solution runs in
the same place as the program, so that its times, from which EvalPlus sets the limits, are those of the same machine and load.
"""

import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any, BinaryIO

from . import filter, kernel
from .levels import Limited
from .limits import Limits
from .run import Unavailable, run, strongest

MOST_CHARACTERS = 200_000  # beyond this it is no program; EvalPlus would try every pair of its lines
SANITISE_SECONDS = 60.0


def main() -> int:
    kernel.die_with_parent()
    multiprocessing.set_start_method("fork")
    _do_without_datasets()
    settings = json.loads(sys.stdin.readline())
    try:
        level, refused = strongest(settings["level"])
    except Unavailable as error:
        _say({"error": f"no isolation works here: {error}"})
        return 1
    problems = _problems(settings["dataset"])
    versions = f"EvalPlus {version('evalplus')} on Python {platform.python_version()}"
    in_force = {"level": level.name, "isolation": describe(level, refused), "enough": level.enough}
    _say({**in_force, "versions": versions})
    if not level.enough and not settings["weak"]:
        return 1
    limits = Limits(**settings["limits"])
    for line in sys.stdin:
        request = json.loads(line)
        problem = problems[request["task_id"]]
        _say({"index": request["index"], **grade(settings["dataset"], problem, request, level, limits)})
    return 0


def _do_without_datasets() -> None:
    """EvalPlus imports `datasets` for a benchmark that is not run here: seconds, and much memory in every process."""
    stand_in: Any = ModuleType("datasets")
    stand_in.load_dataset = None
    sys.modules.setdefault("datasets", stand_in)


def describe(level: Limited, refused: list[str]) -> str:
    user = "" if os.getuid() != 0 or level.name == "limits" else ", a user that owns nothing"
    calls = "no sockets, by a filter on system calls" if filter.available() else "no filter on system calls"
    above = "".join(f"; not available: {reason}" for reason in refused)
    return f"{level.name} ({level.says}{user if level.name == 'namespaces' else ''}; {calls}){above}"


def grade(dataset: str, problem: dict[str, Any], asked: dict[str, Any], level: Limited, limits: Limits) -> dict[str, Any]:
    """EvalPlus's verdict on base and plus tests ("pass", "fail", "timeout"), or how the program's place was cleared."""
    if len(asked["text"]) > MOST_CHARACTERS:
        return {"base": "too long", "plus": "too long", "seconds": 0.0}
    outcome = run(_checked(dataset, problem, asked["text"], asked["before"], limits), level, limits)
    ended = outcome.ended if outcome.ended != "finished" else f"died with {outcome.status}"
    verdict = {"base": ended, "plus": ended}
    if outcome.ended == "finished":
        for line in outcome.output.splitlines()[:2]:  # what it got as far as saying
            verdict.update(_verdict(line))
    return {**verdict, "seconds": round(outcome.seconds, 3)}


def _verdict(line: bytes) -> dict[str, str]:
    """One line that came out of the program's place, where nothing can be trusted to be what it should."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return {key: str(said[key])[:20] for key in ("base", "plus") if key in said} if isinstance(said, dict) else {}


def _checked(dataset: str, problem: dict[str, Any], text: str, before: str, limits: Limits) -> Callable[[BinaryIO], None]:
    from evalplus.eval import untrusted_check  # pyright: ignore[reportMissingImports]
    from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS  # pyright: ignore[reportMissingImports]
    from evalplus.eval.utils import time_limit  # pyright: ignore[reportMissingImports]
    from evalplus.gen.util import trusted_exec  # pyright: ignore[reportMissingImports]
    from evalplus.sanitize import sanitize  # pyright: ignore[reportMissingImports]

    name = problem["entry_point"]
    not_none = dataset == "mbpp" and name in MBPP_OUTPUT_NOT_NONE_TASKS

    def inside(answer: BinaryIO) -> None:
        os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = str(limits.memory)
        with time_limit(SANITISE_SECONDS):
            code = sanitize(text, entrypoint=name)
            if not code.strip():  # the text goes on with the problem's own function
                code = sanitize(before + text, entrypoint=name)
        for part in ("base", "plus"):
            inputs = problem[f"{part}_input"]
            reference = problem["prompt"] + problem["canonical_solution"]
            expected, seconds = trusted_exec(reference, inputs, name, record_time=True, output_not_none=not_none)
            assert isinstance(seconds, list)  # since record_time is asked for
            status, _ = untrusted_check(dataset, code, inputs, name, expected, problem["atol"], seconds, fast_check=True)
            answer.write(json.dumps({part: status}).encode() + b"\n")
            answer.flush()

    return inside


def _problems(dataset: str) -> dict[str, dict[str, Any]]:
    from evalplus.data import get_human_eval_plus, get_mbpp_plus  # pyright: ignore[reportMissingImports]

    return get_human_eval_plus() if dataset == "humaneval" else get_mbpp_plus()


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
