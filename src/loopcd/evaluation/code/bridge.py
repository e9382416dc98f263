"""To EvalPlus and back: programs in, verdicts out. EvalPlus runs in an interpreter of its own, never in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from loopcd.evaluation.code.isolation.limits import Limits
from loopcd.evaluation.code.isolation.scratch import remove

Dataset = Literal["humaneval", "mbpp"]
NEEDS_CONSENT = (
    "this task runs programs that a model wrote, and nobody has read them: say --allow-code-execution to allow it. "
    "Each is shut in, as far as this system allows, with limits on time, memory, processes and disk; "
    "which isolation is in force, and which files it leaves open, is printed"
)
_NEEDED = ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input", "atol")


@dataclass(frozen=True)
class CodeSettings:
    """How programs are run, where that is allowed. `weak` goes on where only limits are available."""

    python: str | None = None  # an interpreter that has EvalPlus; None: this one
    weak: bool = False
    workers: int | None = None  # programs at a time; None: half of the cores, as EvalPlus does
    level: str | None = None  # "namespaces", "user" or "limits"; None: the strongest that works
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"--code-workers {self.workers}: a whole number of at least 1")

    @property
    def interpreter(self) -> str:
        return self.python or sys.executable

    @property
    def at_a_time(self) -> int:
        return self.workers or max(1, (os.cpu_count() or 2) // 2)


@dataclass(frozen=True)
class Program:
    """What the model wrote for one problem. `before` is put before it where EvalPlus finds no program in the text alone."""

    task_id: str
    text: str
    before: str = ""


@dataclass(frozen=True)
class ProgramVerdict:
    """EvalPlus's words for the tests of the original benchmark and for its own: "pass", "fail", "timeout", or what happened.

    "cheated": it tried to be taken for right without a right result.
    """

    base: str
    plus: str
    seconds: float

    @property
    def cheated(self) -> bool:
        return self.base == "cheated"

    @property
    def passed(self) -> tuple[bool, bool]:
        """(base, plus), each by itself."""
        return self.base == "pass", self.plus == "pass"

    def grades(self) -> dict[str, bool]:
        """By metric, as a task hands them on; whether it cheated only where it did."""
        base, plus = self.passed
        return {"base": base, "plus": plus, **({"cheated": True} if self.cheated else {})}


@dataclass(frozen=True)
class Grading:
    """The verdicts in the order of the programs, and what they were reached with."""

    level: str  # of the isolation
    isolation: str  # the same at length
    versions: str  # of EvalPlus and of the Python that ran it
    verdicts: tuple[ProgramVerdict, ...]


def check(dataset: Dataset, settings: CodeSettings) -> Grading:
    """Whether programs could be run: EvalPlus is there, and an isolation that is enough. Runs no program."""
    return grade(dataset, [], [], settings)


def grade(
    dataset: Dataset,
    problems: Sequence[dict[str, Any]],
    programs: Sequence[Program],
    settings: CodeSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Grading:
    """Run every program on its problem's tests. `problems` are records of EvalPlus's file, at least those that are needed."""
    found: dict[str, Any] = {}
    verdicts: dict[int, ProgramVerdict] = {}
    # The problems' file has no name: whoever is not handed it open cannot find the answers there.
    with tempfile.TemporaryFile() as data, tempfile.TemporaryFile("w+") as requests, tempfile.TemporaryFile("w+") as errors:
        head = {"dataset": dataset, "data": data.fileno(), "level": settings.level, "weak": settings.weak}
        head |= {"limits": asdict(settings.limits), "workers": settings.at_a_time}
        _write_requests(requests, head, programs, _write_problems(data, problems))
        with _grader(settings, requests, errors, data.fileno()) as process:
            for line in process.stdout or ():
                said = json.loads(line)
                if "error" in said:
                    raise ValueError(said["error"])
                if "index" in said:
                    verdicts[said["index"]] = ProgramVerdict(said["base"], said["plus"], said["seconds"])
                    progress(len(verdicts), len(programs))
                else:
                    found = said
        missing = len(programs) - len(verdicts)
        if missing or not found or process.returncode != 0:
            errors.seek(0)
            raise ValueError(_what_went_wrong(settings.interpreter, errors.read(), missing))
    in_order = tuple(verdicts[index] for index in range(len(programs)))
    return Grading(found["level"], found["isolation"], found["versions"], in_order)


def _write_problems(file: IO[bytes], problems: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Where each is in the file, by task_id: offset and length."""
    places = {}
    for problem in problems:
        missing = [key for key in _NEEDED if key not in problem]
        if missing:
            raise ValueError(f"the problem {problem.get('task_id', '?')} has no {', '.join(missing)}: is it EvalPlus's data?")
        line = json.dumps(problem).encode()
        places[problem["task_id"]] = file.tell(), len(line)
        file.write(line)
    file.flush()
    return places


def _write_requests(
    file: IO[str], head: dict[str, Any], programs: Sequence[Program], places: dict[str, tuple[int, int]]
) -> None:
    file.write(json.dumps(head) + "\n")
    for index, program in enumerate(programs):
        if program.task_id not in places:
            raise ValueError(f"a program for {program.task_id}, which is none of the {len(places)} problems")
        file.write(json.dumps({"index": index, **asdict(program), "place": places[program.task_id]}) + "\n")
    file.seek(0)


@contextmanager
def _grader(settings: CodeSettings, requests: IO[str], errors: IO[str], data: int) -> Iterator[subprocess.Popen[str]]:
    """At work in a folder of its own. A program that runs as another user may have its own in it, so the way there is open."""
    folder = Path(tempfile.mkdtemp(prefix="loopcd-evalplus-"))
    folder.chmod(0o711)
    environment = {  # nothing of ours: a program has no use for our tokens and paths
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    files: dict[str, Any] = {"stdin": requests, "stdout": subprocess.PIPE, "stderr": errors, "pass_fds": [data]}
    command = [settings.interpreter, "-m", "isolation.grader"]
    try:
        with _named_interpreter(settings):
            process = subprocess.Popen(command, text=True, cwd="/", env=environment, **files)
        with process:
            try:
                yield process
            except BaseException:
                process.kill()  # its programs end with it
                raise
    finally:
        with suppress(Exception):  # whatever a program left there is no reason to lose the verdicts
            remove(folder)


def _what_went_wrong(python: str, errors: str, missing: int) -> str:
    if "No module named 'evalplus'" in errors or "PackageNotFoundError" in errors:
        return f"{python} has no EvalPlus: pip install 'loopcd[code]', or name an interpreter that has it by --evalplus-python"
    return f"EvalPlus, run by {python}, ended early with {missing} programs not graded: {last_line(errors)}"


def last_line(errors: str) -> str:
    return errors.strip().rpartition("\n")[2] or "it said nothing"


# -- what else EvalPlus is asked for, without running a program ---------------------------------------------------------


@contextmanager
def _named_interpreter(settings: CodeSettings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{settings.interpreter} cannot be run ({error}): --evalplus-python names an interpreter with EvalPlus"
        ) from error


def run_python(code: str, settings: CodeSettings, **options: Any) -> subprocess.CompletedProcess[str]:
    """A few lines of ours, by the interpreter that has EvalPlus."""
    command = [settings.interpreter, "-c", code]
    with _named_interpreter(settings):
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **options)


def download(dataset: Dataset, settings: CodeSettings) -> Path:
    """The data file of EvalPlus's release, fetched by EvalPlus itself into a cache folder of ours."""
    function = {"humaneval": "_ready_human_eval_plus_path", "mbpp": "_ready_mbpp_plus_path"}[dataset]
    code = f"import sys; from evalplus.data.{dataset} import {function} as ready; sys.stderr.write(ready())"
    overrides = ("HUMANEVAL_OVERRIDE_PATH", "MBPP_OVERRIDE_PATH")  # they would name another file
    environment = {key: value for key, value in os.environ.items() if key not in overrides}
    run = run_python(code, settings, env={**environment, "XDG_CACHE_HOME": str(cache_folder())})
    path = Path(last_line(run.stderr))
    if run.returncode != 0 or not path.is_file():
        raise ValueError(f"the data of {dataset} could not be downloaded ({path}): give the folder of its file by --data DIR")
    return path


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopcd"
