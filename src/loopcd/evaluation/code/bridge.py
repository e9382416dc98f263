"""To EvalPlus and back: programs in, verdicts out. EvalPlus runs in an interpreter of its own, never in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from loopcd.evaluation.code.isolation.limits import Limits
from loopcd.evaluation.code.isolation.scratch import remove

Dataset = Literal["humaneval", "mbpp"]
OVERRIDE = {"humaneval": "HUMANEVAL_OVERRIDE_PATH", "mbpp": "MBPP_OVERRIDE_PATH"}
NEEDS_CONSENT = (
    "this task runs programs that a model wrote, and nobody has read them: say --allow-code-execution to allow it. "
    "Each is shut in, as far as this system allows, with limits on time, memory, processes and disk; "
    "which isolation is in force, and which files it leaves open, is printed"
)
_NEEDED = ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input", "atol")
_HERE = Path(__file__).parent


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
    shared = _Shared(lambda done, total: None, 0)
    with _folder() as folder, _Problems([]) as data:
        _run_shard(_Shard(dataset, data, folder, 0, settings), (), (), shared)
    return shared.grading()


def download(dataset: Dataset, settings: CodeSettings) -> Path:
    """The data file of EvalPlus's release, fetched by EvalPlus itself into a cache folder of ours."""
    name = {"humaneval": "humaneval._ready_human_eval_plus_path", "mbpp": "mbpp._ready_mbpp_plus_path"}[dataset]
    module, function = name.split(".")
    code = f"import sys; from evalplus.data.{module} import {function} as ready; sys.stderr.write(ready())"
    environment = {key: value for key, value in os.environ.items() if key not in OVERRIDE.values()}
    run = subprocess.run(
        [settings.interpreter, "-c", code],
        capture_output=True,
        text=True,
        env={**environment, "XDG_CACHE_HOME": str(cache_folder())},
    )
    path = Path(run.stderr.strip().splitlines()[-1]) if run.stderr.strip() else Path()
    if run.returncode != 0 or not path.is_file():
        raise ValueError(f"the data of {dataset} could not be downloaded ({path}): give the folder of its file by --data DIR")
    return path


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopcd"


def grade(
    dataset: Dataset,
    problems: Sequence[dict[str, Any]],
    programs: Sequence[Program],
    settings: CodeSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Grading:
    """Run every program on its problem's tests. `problems` are records of EvalPlus's file, at least those that are needed."""
    workers = settings.at_a_time
    unknown = {program.task_id for program in programs} - {problem.get("task_id") for problem in problems}
    if unknown:
        raise ValueError(f"a program for {min(unknown)}, which is none of the {len(problems)} problems")
    shards = [range(start, len(programs), workers) for start in range(min(workers, len(programs)))]
    shared = _Shared(progress, len(programs))
    with _folder() as folder, _Problems(problems) as data, ThreadPoolExecutor(max(1, len(shards))) as pool:
        work = [
            pool.submit(_run_shard, _Shard(dataset, data, folder, number, settings), programs, shard, shared)
            for number, shard in enumerate(shards)
        ]
        try:
            for each in as_completed(work):
                each.result()
        except BaseException:  # the pool waits for its threads: what they wait for must end
            shared.stop()
            raise
    return shared.grading()


@contextmanager
def _folder() -> Iterator[Path]:
    """A program that runs as another user may have its own folder in it, so the way there is open."""
    folder = Path(tempfile.mkdtemp(prefix="loopcd-evalplus-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        with suppress(Exception):  # whatever a program left there is no reason to lose the verdicts
            remove(folder)


@dataclass
class _Shared:
    """What the workers' threads bring together."""

    progress: Callable[[int, int], None]
    total: int
    level: str = ""
    isolation: str = ""
    versions: str = ""
    verdicts: dict[int, ProgramVerdict] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True
        for process in self.processes:
            process.kill()

    def grading(self) -> Grading:
        verdicts = tuple(self.verdicts[index] for index in range(self.total))
        return Grading(self.level, self.isolation, self.versions, verdicts)

    def take(self, line: str, weak: bool) -> None:
        said = json.loads(line)
        if "error" in said:
            raise ValueError(said["error"])
        if "isolation" in said:
            if not said["enough"] and not weak:
                raise ValueError(_too_weak(said["isolation"]))
            if not self.isolation:
                self.level, self.isolation, self.versions = said["level"], said["isolation"], said["versions"]
            return
        self.verdicts[said["index"]] = ProgramVerdict(said["base"], said["plus"], said["seconds"])
        self.progress(len(self.verdicts), self.total)


def _too_weak(isolation: str) -> str:
    return (
        f"programs that a model wrote are not run here: of the isolation only {isolation} is available. Run as root, or where "
        "user namespaces are allowed; or say --weak-isolation if this machine holds nothing of value"
    )


class _Problems:
    """The problems' records in a file without a name: whoever is not handed it open cannot find the answers there."""

    def __init__(self, problems: Sequence[dict[str, Any]]) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        self.places: dict[str, tuple[int, int]] = {}  # offset and length, by task_id
        for problem in problems:
            missing = [key for key in _NEEDED if key not in problem]
            if missing:
                raise ValueError(
                    f"the problem {problem.get('task_id', '?')} has no {', '.join(missing)}: is it EvalPlus's data?"
                )
            line = json.dumps(problem).encode()
            self.places[problem["task_id"]] = self.file.tell(), len(line)
            self.file.write(line)
        self.file.flush()

    def __enter__(self) -> _Problems:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@dataclass(frozen=True)
class _Shard:
    """One interpreter with EvalPlus at work."""

    dataset: Dataset
    data: _Problems
    folder: Path
    number: int
    settings: CodeSettings

    def environment(self) -> dict[str, str]:
        """Nothing of ours: a program has no use for our tokens and paths."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(_HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def write_requests(self, programs: Sequence[Program], chosen: Sequence[int], file: IO[str]) -> None:
        head = {
            "dataset": self.dataset,
            "data": self.data.file.fileno(),
            "level": self.settings.level,
            "weak": self.settings.weak,
            "limits": asdict(self.settings.limits),
        }
        file.write(json.dumps(head) + "\n")
        for index in chosen:
            request = {"index": index, **asdict(programs[index]), "place": self.data.places[programs[index].task_id]}
            file.write(json.dumps(request) + "\n")
        file.seek(0)


def _run_shard(shard: _Shard, programs: Sequence[Program], chosen: Sequence[int], shared: _Shared) -> None:
    errors = shard.folder / f"errors-{shard.number}.txt"
    errors.touch(mode=0o600)
    command = [shard.settings.interpreter, "-m", "isolation.grader"]
    with tempfile.TemporaryFile("w+") as requests, errors.open("w") as error_file:
        shard.write_requests(programs, chosen, requests)
        try:
            process = subprocess.Popen(
                command,
                stdin=requests,
                stdout=subprocess.PIPE,
                stderr=error_file,
                text=True,
                cwd="/",
                env=shard.environment(),
                pass_fds=[shard.data.file.fileno()],
            )
        except OSError as error:
            raise ValueError(
                f"{command[0]} cannot be run ({error}): --evalplus-python names an interpreter with EvalPlus"
            ) from error
        shared.processes.append(process)
        try:
            if shared.stopped:
                process.kill()
            with process:
                for line in process.stdout or ():
                    shared.take(line, shard.settings.weak)
        finally:
            process.kill()
    missing = [index for index in chosen if index not in shared.verdicts]
    if missing or process.returncode != 0:
        raise ValueError(_what_went_wrong(command[0], errors.read_text(), len(missing)))


def _what_went_wrong(python: str, errors: str, missing: int) -> str:
    if "No module named 'evalplus'" in errors or "PackageNotFoundError" in errors:
        return f"{python} has no EvalPlus: pip install 'loopcd[code]', or name an interpreter that has it by --evalplus-python"
    last = errors.strip().splitlines()[-1] if errors.strip() else "it said nothing"
    return f"EvalPlus, run by {python}, ended early with {missing} programs not graded: {last}"
