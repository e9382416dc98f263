"""Which changes of the source do the tests notice? One small change at a time, in a copy, and the tests of its room run on it.

    python scripts/mutants.py                       # forty changes: which test notices each, or that none does
    python scripts/mutants.py --only decoding/rules --count 5
    python scripts/mutants.py --tests OTHER_CLONE   # the same changes under the tests of another clone

A change is a comparison turned (< for <=, == for !=), − for +, a number that is one larger, `or` for `and`, `not` left out,
`max` for `min`. Which are tried follows from a hash of the code around them, so that they stay the same while other code
changes. What no test notices makes no difference, or lacks a test: look at it.
"""

import argparse
import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "src" / "loopcd"
# What is changed, by room, and the tests that should notice
ROOMS = {
    "decoding": ("decoding/*.py", ["tests/decoding", "tests/test_devices.py"]),
    "models": ("models/*.py", ["tests/models", "tests/decoding", "tests/evaluation/test_paper.py"]),
    "evaluation": ("evaluation/*.py", ["tests/evaluation"]),
    "serving": ("serving/vllm/[co][op][nt]*.py", ["tests/serving"]),  # contrast and options: what runs without vLLM
    "tracing": ("tracing/*.py", ["tests/tracing"]),
}
SECONDS = 400  # a change may make a loop endless

TURNED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    file: str  # below the package
    number: int  # of the place in its file
    line: int
    before: str
    after: str

    @property
    def rank(self) -> str:
        """Where the change comes in the order of trial."""
        return hashlib.sha256(f"{self.file} {self.before} {self.after}".encode()).hexdigest()

    def source(self) -> str:
        """The whole file with the change."""
        tree = ast.parse((PACKAGE / self.file).read_text(encoding="utf-8"))
        change(list(places(tree))[self.number][0])
        return ast.unparse(tree)


def mutants(path: Path) -> Iterator[Mutant]:
    """Every single change of one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for number, (node, around) in enumerate(places(tree)):
        before = ast.unparse(around)
        undo = change(node)
        after = ast.unparse(around)
        undo()
        yield Mutant(path.relative_to(PACKAGE).as_posix(), number, around.lineno, before, after)


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What can be changed, with the expression that it stands in; no message of an error, no annotation, no default."""
    for function in ast.walk(tree):
        for statement in function.body if isinstance(function, ast.FunctionDef) else ():
            yield from _within(statement)


def _within(statement: ast.stmt) -> Iterator[tuple[ast.AST, ast.expr]]:
    if isinstance(statement, (ast.Raise, ast.FunctionDef, ast.ClassDef)):  # functions inside come by themselves
        return
    for name, value in ast.iter_fields(statement):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.stmt):
                yield from _within(part)
            elif isinstance(part, ast.expr) and name != "annotation" and not isinstance(part, ast.Constant):
                yield from ((node, part) for node in ast.walk(part) if changeable(node))


def changeable(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[op]):
            return type(op) in TURNED
        case ast.BinOp(op=op) | ast.BoolOp(op=op):
            return type(op) in OTHER
        case ast.Constant(value=value):
            return type(value) in (int, bool)
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in NAMES
    return False


def change(node: ast.AST) -> Callable[[], None]:
    """Make the change; gives what takes it back."""
    kept = dict(vars(node))
    match node:
        case ast.Compare(ops=[op]):
            node.ops = [TURNED[type(op)]()]
        case ast.BinOp(op=op) | ast.BoolOp(op=op):
            node.op = OTHER[type(op)]()
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.UnaryOp(operand=operand):
            node.operand = ast.UnaryOp(ast.Not(), operand)
        case ast.Call(func=ast.Name(id=name)):
            node.func = ast.Name(NAMES[name], ast.Load())
    return lambda: vars(node).update(kept)


def chosen(only: str, count: int) -> list[tuple[Mutant, list[str]]]:
    """The first changes by rank, equally many of each room, each with its tests."""
    found = []
    rooms = {room: what for room, what in ROOMS.items() if only.startswith(room) or not only}
    for pattern, tests in rooms.values():
        files = [path for path in sorted(PACKAGE.glob(pattern)) if path.relative_to(PACKAGE).as_posix().startswith(only)]
        ranked = sorted((mutant for path in files for mutant in mutants(path)), key=lambda each: each.rank)
        found += [(mutant, tests) for mutant in ranked[: -(-count // len(rooms))]]
    return found


def nearest_first(tests: list[str], stem: str, repo: Path) -> list[str]:
    """The files of tests, those first that speak most of the changed file."""

    def distance(path: Path) -> tuple[bool, float]:
        words = re.findall(r"[a-z_]+" if "_" in stem else r"[a-z]+", path.read_text(encoding="utf-8").lower())
        return path.stem != f"test_{stem}", -words.count(stem) / len(words)

    found = [path for each in tests for path in sorted((repo / each).rglob("test_*.py")) or [repo / each]]
    if find_spec("vllm") is None:  # named one by one they would be read, and fail, whatever was changed
        found = [path for path in found if "vllm" not in path.relative_to(repo).parts]
    return [str(path.relative_to(repo)) for path in sorted(found, key=distance)]


def tried(mutant: Mutant, tests: list[str], repo: Path) -> tuple[str, float]:
    """The test that notices the change, or what else became of it; and the CPU seconds."""
    paths = nearest_first(tests, Path(mutant.file).stem, repo)
    with tempfile.TemporaryDirectory(prefix="loopcd-mutant-") as folder:
        package = Path(folder) / "loopcd"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "assets"))
        (package / "assets").symlink_to(PACKAGE / "assets")
        (package / mutant.file).write_text(mutant.source(), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
        began = os.times()
        try:
            done = subprocess.run(
                [*command, *paths], cwd=repo, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "noticed: it does not end", SECONDS
        after = os.times()
        took = after.children_user + after.children_system - began.children_user - began.children_system
    if done.returncode == 0:
        return "NOT NOTICED", took
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return f"noticed by {failed[1]}" if failed else f"status {done.returncode}: {done.stdout.strip()[-200:]}", took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", default="", help="changes in files whose place in the package begins so")
    parser.add_argument("--tests", type=Path, default=REPO, help="a clone whose tests are run")
    parser.add_argument("--list", action="store_true", help="show the changes, run nothing")
    given = parser.parse_args()
    lost = 0
    for number, (mutant, tests) in enumerate(chosen(given.only, given.count), 1):
        sys.stdout.write(f"{number:3} {mutant.file}:{mutant.line}\n      − {mutant.before}\n      + {mutant.after}\n")
        if not given.list:
            began = time.monotonic()
            told, took = tried(mutant, tests, given.tests.resolve())
            lost += told == "NOT NOTICED"
            sys.stdout.write(f"      {told} ({took:.0f} s, {time.monotonic() - began:.0f} s by the clock)\n")
        sys.stdout.flush()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
