"""Grade programs by EvalPlus, each shut in by itself: `python -m isolation.grader`, run by the interpreter that has EvalPlus.

Standard input: a JSON line with the settings, then one for each program. Standard output: a JSON line on the isolation in
force, then one for each program as it is graded. No process here reads the problems: a program's place is a copy of it. Beside
each program's place a judge is started in another, and that one reads the problem from the open file that the settings name.
"""

import json
import multiprocessing
import os
import platform
import sys
import traceback
from functools import partial
from importlib.metadata import version
from types import ModuleType
from typing import Any

from . import filter, kernel
from .levels import Limited
from .limits import Limits
from .run import ProgramEnd, Unavailable, run_together, strongest

MOST_CHARACTERS = 200_000  # beyond this it is no program; EvalPlus would try every pair of its lines

TOO_WEAK = (
    "programs that a model wrote are not run here: of the isolation only {isolation} is available. Run as root, or where "
    "user namespaces are allowed; or say --weak-isolation if this machine holds nothing of value"
)


def main() -> int:
    kernel.die_with_parent()
    kernel.close_to_others()
    multiprocessing.set_start_method("fork")
    _load_evalplus()
    settings = json.loads(sys.stdin.readline())
    try:
        level, refused = strongest(settings["level"])
    except (Unavailable, OSError) as error:
        return _cannot(error)
    isolation = describe(level, refused)
    if not level.enough and not settings["weak"]:
        _say({"error": TOO_WEAK.format(isolation=isolation)})
        return 1
    versions = f"EvalPlus {version('evalplus')} on Python {platform.python_version()}"
    _say({"level": level.name, "isolation": isolation, "versions": versions})
    at_work = 0
    for line in sys.stdin:
        if at_work == settings.get("workers", 1):
            at_work -= 1
            if not _one_ended_well():
                return 1  # the others end with us
        if os.fork() == 0:
            os._exit(_grade_apart(settings, line, level))
        at_work += 1
    return 0 if all(_one_ended_well() for _ in range(at_work)) else 1


def _load_evalplus() -> None:
    """Once, before anything is forked. It imports `datasets` for a benchmark that is not run here: seconds, and much memory."""
    stand_in: Any = ModuleType("datasets")
    stand_in.load_dataset = None
    sys.modules.setdefault("datasets", stand_in)
    from . import judge  # noqa: F401


def _one_ended_well() -> bool:
    return os.wait()[1] == 0


def _grade_apart(settings: dict[str, Any], line: str, level: Limited) -> int:
    """In a process of its own, so that several programs are graded at a time."""
    try:
        kernel.die_with_parent()
        request = json.loads(line)
        verdict = grade(settings["dataset"], settings["data"], request, level, Limits(**settings["limits"]))
        _say({"index": request["index"], **verdict})
    except (Unavailable, OSError) as error:
        return _cannot(error)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def describe(level: Limited, refused: list[str]) -> str:
    user = ", a user that owns nothing" if os.getuid() == 0 and level.name == "namespaces" else ""
    calls = "no sockets, by a filter on system calls" if filter.available() else "no filter on system calls"
    above = "".join(f"; not available: {reason}" for reason in refused)
    return f"{level.name} ({level.says}{user}; {calls}){above}"


def grade(dataset: str, data: int, request: dict[str, Any], level: Limited, limits: Limits) -> dict[str, Any]:
    """EvalPlus's verdict on base and plus tests ("pass", "fail", "timeout"), "cheated", or how the program was ended."""
    from .judge import Talk, contest, judge

    if len(request["text"]) > MOST_CHARACTERS:
        return {"base": "too long", "plus": "too long", "seconds": 0.0}
    talk = Talk()
    judging = partial(judge, dataset, data, request["place"], limits, talk)
    playing = partial(contest, request["text"], request["before"], limits, talk)
    judged, played = run_together([(judging, (data, *talk.of_judge)), (playing, talk.of_program)], level, limits)
    told = _verdicts(judged.output)
    verdict = {part: _word(told.get(part), judged, played) for part in ("base", "plus")}
    return {**verdict, "seconds": round(judged.seconds, 3)}


def _word(told: str | None, judged: ProgramEnd, played: ProgramEnd) -> str:
    """The judge's, unless a place had to be cleared before the program passed, or could not be."""
    for outcome in (judged, played):
        if outcome.ended == "left files" or (outcome.ended != "finished" and told not in ("pass", "cheated")):
            return outcome.ended
    return told or f"died with {judged.status}"


def _verdicts(output: bytes) -> dict[str, str]:
    """What came out of the judge's place, where the data's own code was run."""
    try:
        said = json.loads(output)
    except ValueError:
        return {}
    return {key: str(said[key])[:20] for key in ("base", "plus") if key in said} if isinstance(said, dict) else {}


def _cannot(error: Exception) -> int:
    _say({"error": f"programs cannot be shut in here: {error}"})
    return 1


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
