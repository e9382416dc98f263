"""Is one checkout slower than another? `python scripts/versions.py OLD NEW [--pairs 8] [--jobs tiny-huginn,greedy,1 ...]`

A process for each checkout, both on the same core at the same time: the system gives them turns of a few milliseconds, so
whatever slows the machine down slows both, and each counts its own CPU time. Processes of one checkout still differ (where
their memory came to lie), so a pair gives one ratio, of its rounds' medians, and what is told is the median of the pairs'
ratios with its 95 % interval by bootstrap. OLD twice shows what the measure can tell apart.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

BUILT_IN = ("tiny-huginn", "tiny-ouro")
JOBS = (
    *(f"{model},{method},{batch}" for method in ("greedy", "loopcd") for batch in (1, 8, 64) for model in BUILT_IN),
    *(f"{model},draft,{batch}" for batch in (1, 8) for model in BUILT_IN),
    "tiny-huginn,exit,1",
)
METHODS = ("greedy", "loopcd", "draft", "exit")
TOKENS = 64


def say(line: str, file: TextIO = sys.stdout) -> None:
    file.write(line + "\n")
    file.flush()


def work() -> None:
    """The process of one checkout: a job a line on standard input, its seconds of CPU by round on standard output."""
    import torch

    import loopcd
    from loopcd.evaluation.tasks import steps

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    drafted = loopcd.LoopCD(draft=loopcd.SelfDraft(loops=None, length=None))
    leaving = loopcd.Greedy(exit=loopcd.EarlyExit(min_loops=4))
    methods = dict(zip(METHODS, (loopcd.Greedy(), loopcd.LoopCD(), drafted, leaving), strict=True))
    prompts = [each.prompt for each in steps.problems("steps", "test", 64)]
    models: dict[str, Any] = {}
    say("ready")
    for line in sys.stdin:
        name, method, batch, rounds = json.loads(line)
        model, tokenizer = models.get(name) or models.setdefault(name, loopcd.load(name))
        seconds, texts = [], []
        for _ in range(rounds):
            begun = time.process_time()
            found = loopcd.generate(model, tokenizer, prompts[:batch], methods[method], max_new_tokens=TOKENS, batch_size=batch)
            seconds.append(time.process_time() - begun)
            texts = [each.token_ids for each in found]
        say(json.dumps([seconds, texts]))


def start(tree: Path, core: int) -> "subprocess.Popen[str]":
    """A process that works with this checkout's package, on this core alone."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, str(Path(__file__).resolve()), "--work"], env=environment, cwd=tree, **pipes)
    os.sched_setaffinity(process.pid, {core})  # threads that it starts later inherit this
    return process


def ask(processes: Sequence["subprocess.Popen[str]"], job: str, rounds: int) -> list[Any]:
    """Both do the job at the same time."""
    name, method, batch = job.split(",")
    for each in processes:
        assert each.stdin
        each.stdin.write(json.dumps([name, method, int(batch), rounds]) + "\n")
        each.stdin.flush()
    lines = [each.stdout.readline() for each in processes if each.stdout]
    if not all(lines):
        raise SystemExit(f"versions: {job}: a process ended, as it says above")
    return [json.loads(line) for line in lines]


def pair(old: Path, new: Path, jobs: Sequence[str], rounds: int, core: int) -> dict[str, tuple[float, bool]]:
    """By job: how much more a second of CPU gets done in the new checkout, and whether the texts are the same."""
    processes = [start(old, core), start(new, core)]
    for each in processes:
        if not each.stdout or each.stdout.readline().strip() != "ready":
            raise SystemExit(f"versions: the package of {old if each is processes[0] else new} does not start")
    found = {}
    for job in jobs:
        ask(processes, job, 2)  # warm-up
        (before, text), (now, same) = ask(processes, job, rounds)
        found[job] = (statistics.median(before) / statistics.median(now), text == same)
    for each in processes:
        each.communicate()
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % of the medians of as many ratios drawn from these."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--jobs", nargs="*", default=JOBS, help=f"MODEL,METHOD,BATCH each; methods: {', '.join(METHODS)}")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--core", type=int, default=0)
    given = parser.parse_args()
    for job in given.jobs:
        if not re.fullmatch(rf"[^,]+,({'|'.join(METHODS)}),[1-9]\d*", job):
            parser.error(f"--jobs {job}: MODEL,METHOD,BATCH with a method of {', '.join(METHODS)}")
    for tree in (given.old, given.new):
        if not (tree / "src" / "loopcd").is_dir():
            parser.error(f"{tree} has no src/loopcd: give two checkouts of this project")
    told: dict[str, list[tuple[float, bool]]] = {job: [] for job in given.jobs}
    for number in range(given.pairs):
        trees = (given.old.resolve(), given.new.resolve())
        for job, found in pair(*trees, given.jobs, given.rounds, given.core).items():
            told[job].append(found)
        say(f"pair {number + 1} of {given.pairs}", file=sys.stderr)
    for job, found in told.items():
        ratios = [ratio for ratio, _ in found]
        low, high = interval(ratios)
        same = "" if all(same for _, same in found) else "  other texts"
        say(f"{job:24} {statistics.median(ratios):.3f} ({low:.3f}-{high:.3f}) of {sorted(round(r, 2) for r in ratios)}{same}")


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main()
