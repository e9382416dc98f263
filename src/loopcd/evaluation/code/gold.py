"""The ceiling of a benchmark of programs: how many reference solutions pass, by the same road as a model's programs.

It is below all: EvalPlus 0.3.1 can never pass HumanEval/32, and some of MBPP+ run into its time limits on a busy machine.
What passed on this machine is kept, so that it is found out once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loopcd.evaluation.code.bridge import Grading, Program, cache_folder
from loopcd.evaluation.task import Ceiling

RunPrograms = Callable[[Sequence[dict[str, Any]], Sequence[Program]], Grading]


def ceiling(dataset: str, problems: Sequence[dict[str, Any]], data_hash: str, versions: str, run: RunPrograms) -> Ceiling:
    """Of these problems; those that were not tried on this machine before are tried now."""
    path = cache_folder() / "gold" / f"{dataset}-{data_hash[:12]}-{versions.replace(' ', '-')}-each.json"
    known = _read(path)
    new = [problem for problem in problems if problem["task_id"] not in known]
    if new:
        programs = [Program(problem["task_id"], problem["prompt"] + problem["canonical_solution"]) for problem in new]
        verdicts = run(new, programs).verdicts
        known |= {problem["task_id"]: list(verdict.passed) for problem, verdict in zip(new, verdicts, strict=True)}
        _write(path, known)
    passed = [known[problem["task_id"]] for problem in problems]
    failed = tuple(problem["task_id"] for problem, both in zip(problems, passed, strict=True) if not all(both))
    counts = {"base": sum(base for base, _ in passed), "plus": sum(plus for _, plus in passed)}
    return Ceiling(counts, len(passed), failed)


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
