"""Ours and the public code, turn by turn in two processes of two environments: one thread, float32, CPU time."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from loopcd.bench import reference_worker
from loopcd.bench.full_size import PROMPT, made
from loopcd.bench.subjects import MEDIUM
from loopcd.bench.timing import Say, Spread, alternately
from loopcd.models.presets import PUBLIC

MAKERS = {**MEDIUM, "huginn-medium": partial(MEDIUM["huginn-medium"], tie_embeddings=True)}
OURO = "ByteDance/Ouro-1.4B"
FULL_SIZE = {OURO: lambda: made(PUBLIC[OURO](), "float32")}  # only where it is asked for, with a short prompt


Ask = Callable[[int, int], dict[str, Any]]  # of a context and a number of tokens: their times, and the text


@contextmanager
def worker(python: str, *arguments: str) -> Iterator[Ask]:
    """A process that holds one model and answers line by line."""
    command, environment = [python, str(reference_worker.__file__), *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
    process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def answer() -> dict[str, Any]:
        line = process.stdout.readline()
        if not line:
            raise ValueError(f"--reference: the process for {' '.join(arguments[:2])} ended with status {process.wait()}")
        return json.loads(line)

    def ask(context: int, tokens: int) -> dict[str, Any]:
        process.stdin.write(json.dumps({"context": context, "tokens": tokens}) + "\n")
        process.stdin.flush()
        return answer()

    try:
        answer()  # when the model is loaded
        yield ask
    finally:
        process.stdin.close()
        process.wait()


def checked_reference(given: str | None) -> tuple[str, Path]:
    """The interpreter and the folder of PYTHON,FOLDER."""
    python, _, folder = (given or "").partition(",")
    missing = [name for name in ("huginn_ref", "ouro_ref") if not (Path(folder) / name).is_dir()]
    if not python or not folder or not Path(python).is_file() or missing:
        raise ValueError(
            f"--reference {given!r}: PYTHON,FOLDER, an interpreter with transformers 4.57 and a folder with the public code in "
            "huginn_ref and ouro_ref"
        )
    return python, Path(folder)


def check_public_code(python: str, folder: Path, families: Sequence[str]) -> None:
    """Before anything is measured: the interpreter can import the public code of these families."""
    modules = [reference_worker.CLASSES[family][0] for family in families]
    code = "import importlib, sys; sys.path.insert(0, sys.argv[1]); [*map(importlib.import_module, sys.argv[2:])]"
    tried = subprocess.run([python, "-c", code, str(folder), *modules], capture_output=True, text=True)
    if tried.returncode:
        why = tried.stderr.strip().rpartition("\n")[2]
        raise ValueError(f"--reference {python},{folder}: {' and '.join(modules)} cannot be imported there: {why}")


def bench_reference(
    reference: str | None, contexts: Sequence[int], rounds: int, tokens: int, say: Say, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Tokens per CPU second of decoding and of prompts, ours over the reference's, by context."""
    python, folder = checked_reference(reference)
    subjects, found = {**MAKERS, **FULL_SIZE}, dict[str, Any]()
    unknown = [name for name in names or () if name not in subjects]
    if unknown:
        raise ValueError(f"models={','.join(unknown)}: beside the public code, some of {', '.join(subjects)}")
    families = {name: name.rpartition("/")[2].partition("-")[0].lower() for name in names or MAKERS}
    check_public_code(python, folder, list(dict.fromkeys(families.values())))
    for name, family in families.items():
        say(f"reference: {name}")
        prompts = (PROMPT,) if name in FULL_SIZE else contexts
        with tempfile.TemporaryDirectory() as place:
            subjects[name]().save_pretrained(place)
            own, other = (sys.executable, "ours", family, place), (python, "reference", family, place, str(folder))
            with worker(*own) as ours, worker(*other) as public:
                found[name] = {str(each): _compare(ours, public, each, rounds, tokens) for each in prompts}
    return found


def _compare(ours: Ask, public: Ask, context: int, rounds: int, tokens: int) -> dict[str, Any]:
    for ask in (ours, public):
        ask(context, 4)
    sides = {"ours": partial(ours, context, tokens), "reference": partial(public, context, tokens)}
    told = alternately(sides, rounds, warm_up=0)

    def over(part: str) -> dict[str, float]:
        pairs = zip(told["ours"], told["reference"], strict=True)
        return asdict(Spread.of([theirs[part] / own[part] for own, theirs in pairs]))

    speeds = {name: asdict(Spread.of([tokens / each["decode"] for each in answers])) for name, answers in told.items()}
    same = told["ours"][-1]["text"] == told["reference"][-1]["text"]
    return {"tokens_per_cpu_second": speeds, "decode": over("decode"), "prompt": over("prompt"), "same_text": same}
