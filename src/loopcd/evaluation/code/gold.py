"""The ceiling of a benchmark of programs: how many reference solutions pass, by the same road as a model's programs.

It is below all: EvalPlus 0.3.1 can never pass HumanEval/32, and some of MBPP+ run into its time limits on a busy machine.
What passed on this machine is kept, so that it is found out once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopcd.evaluation.code.bridge import Program, Report

Run = Callable[[Sequence[dict[str, Any]], Sequence[Program]], Report]


@dataclass(frozen=True)
class Ceiling:
    """Reference solutions that pass the base tests, and those that pass the plus tests as well."""

    base: int
    plus: int
    total: int
    failed: tuple[str, ...]  # problems whose reference solution does not pass plus

    def describe(self) -> str:
        names = ", ".join(self.failed[:4]) + (", …" if len(self.failed) > 4 else "")
        failed = f" (not {names})" if self.failed else ""
        return f"reference solutions pass base {self.base} and plus {self.plus} of these {self.total} here{failed}"


def ceiling(dataset: str, problems: Sequence[dict[str, Any]], data_hash: str, versions: str, run: Run) -> Ceiling:
    """Of these problems; those that were not tried on this machine before are tried now."""
    path = cache_folder() / "gold" / f"{dataset}-{data_hash[:12]}-{versions.replace(' ', '-')}.json"
    known = _read(path)
    new = [problem for problem in problems if problem["task_id"] not in known]
    if new:
        programs = [Program(problem["task_id"], problem["prompt"] + problem["canonical_solution"]) for problem in new]
        verdicts = run(new, programs).verdicts
        known |= {problem["task_id"]: list(verdict.passed) for problem, verdict in zip(new, verdicts, strict=True)}
        _write(path, known)
    passed = [known[problem["task_id"]] for problem in problems]
    failed = tuple(problem["task_id"] for problem, (_, plus) in zip(problems, passed, strict=True) if not plus)
    return Ceiling(sum(base for base, _ in passed), sum(plus for _, plus in passed), len(passed), failed)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopcd"


def _read(path: Path) -> dict[str, list[bool]]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _write(path: Path, known: dict[str, list[bool]]) -> None:
    """At once: two runs at a time may write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(known, indent=1))
    draft.replace(path)
