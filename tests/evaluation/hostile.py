"""Run a hostile program shut in, from outside, and look for what it left behind.

The program is Python that finds `say(text)` (what comes back to the test) and `child(function)` (call it in a process of its
own, as EvalPlus does with a model's program, and get its exit status).
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopcd.evaluation.code import isolation

DRIVER = """
import json, os, sys
from isolation.limits import Limits
from isolation.run import Unavailable, run, strongest

def child(function):
    process = os.fork()
    if process == 0:
        try:
            function()
        except BaseException:
            os._exit(9)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

def program(answer):
    def say(text):
        answer.write(f"{text}\\n".encode())
        answer.flush()
    exec(source, {"say": say, "child": child, "outside": outside})

request = json.loads(sys.argv[1])
if request["blocked"]:  # as in a container that allows no namespaces
    from isolation import filter
    filter.install()
exec(request["before"])
source, outside = request["source"], os.getpid()
try:
    level, refused = strongest(request["level"])
except Unavailable as error:
    print(json.dumps({"unavailable": str(error)}))
    sys.exit()
if source is None:
    print(json.dumps({"level": level.name, "enough": level.enough, "refused": refused}))
    sys.exit()
outcome = run(program, level, Limits(**request["limits"]))
print(json.dumps({"level": level.name, "ended": outcome.ended, "status": outcome.status,
                  "said": outcome.output[:10000].decode(errors="replace"), "size": len(outcome.output)}))
"""


@dataclass(frozen=True)
class Way:
    """An isolation level as some user: None is who we are."""

    level: str | None  # None: the strongest
    user: int | None = None
    blocked: bool = False  # where the system allows no namespaces
    token: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)

    def __str__(self) -> str:
        return str(self.level) if self.user is None else f"{self.level} as an ordinary user"

    def start(self, source: str | None, before: str = "", **limits: Any) -> subprocess.Popen[str]:
        """`before` is run where the grader is."""
        request = {"source": source, "before": before, "level": self.level, "blocked": self.blocked}
        request["limits"] = {"seconds": 20, **limits}
        who = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": package_folder(), "SECRET": "of the grader"}
        environment["TMPDIR"] = f"{package_folder()}/scratch"
        command = [interpreter(), "-c", DRIVER, json.dumps(request), self.token]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd="/", **who)

    def run(self, source: str | None, before: str = "", **limits: Any) -> dict[str, Any]:
        process = self.start(source, before, **limits)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, "the grader did not live"
        return json.loads(output)

    def left(self) -> list[int]:
        """Processes that carry our token: all that the driver started and that is still there."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and self.token.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def nothing_left(self, seconds: float = 5.0) -> bool:
        end = time.monotonic() + seconds
        while self.left() and time.monotonic() < end:
            time.sleep(0.05)
        return not self.left()


def interpreter() -> str:
    """One whose libraries every user can read; ours, if it is such a one."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(candidate).exists() and open_to_all(Path(candidate).resolve()):
            return candidate
    raise AssertionError("no Python here can be read by other users: install one in /usr")


def open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.parents)


_COPY: list[str] = []


def package_folder() -> str:
    """The isolation package by itself, where every user can read it."""
    if not _COPY:
        folder = Path(f"/tmp/loopcd-isolation-{os.getuid()}-{os.getpid()}")
        source = Path(isolation.__file__).parent
        shutil.copytree(source, folder / "isolation", ignore=shutil.ignore_patterns("__pycache__"))
        folder.chmod(0o755)
        (folder / "scratch").mkdir()
        (folder / "scratch").chmod(0o1777)
        _COPY.append(str(folder))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _COPY[0]


def ways() -> list[Way]:
    """All that this system allows: as root also what an ordinary user would get."""
    wanted = [Way("namespaces")]
    if os.getuid() == 0:
        wanted += [Way("user"), Way("namespaces", user=54321)]
    return [way for way in wanted if "level" in way.run(None)]


_ENVIRONMENT: list[str | None] = []


def interpreter_with_evalplus() -> str | None:
    """One that every user can read, for programs that run as another user: ours, or the system's with our packages."""
    if not _ENVIRONMENT:
        _ENVIRONMENT.append(_made_open())
    return _ENVIRONMENT[0]


def _made_open() -> str | None:
    if open_to_all(Path(sys.executable).resolve()):
        return sys.executable
    packages = Path(sysconfig.get_path("purelib"))
    folder = Path(f"/tmp/loopcd-interpreter-{os.getuid()}-{os.getpid()}")
    theirs = subprocess.run([interpreter(), "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    if theirs.stdout.strip() != str(sys.version_info[:2]) or not open_to_all(packages.resolve()):
        return None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run([interpreter(), "-m", "venv", "--without-pip", str(folder)], check=True)
    (own,) = folder.glob("lib/python3*/site-packages")
    (own / "ours.pth").write_text(f"{packages}\n")
    return str(folder / "bin" / "python")
