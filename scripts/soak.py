"""A server under mixed traffic for a while: streams, cancellations, malformed bodies, settings at random, every answer checked.

    python scripts/soak.py [--minutes 30] [--models tiny-huginn,tiny-ouro] [--concurrency 1,4,16,64]

Starts `loopcd serve` for each model, gives every concurrency its share of the time, and prints a Markdown table: latency of
whole answers at the 50th, 95th and 99th percentile, and the server's memory over the time. Every answer is compared with the
transformers side's, token for token. Exit status 1 if one differs that is no near tie, if a malformed body is answered by
anything but a refusal, or if the memory grew by more than a fiftieth in the second half of the time.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # what "the same" means is the tests' own

from loopcd.evaluation.tasks import steps
from loopcd.models.loading import load
from serving.parity import Case, is_near_tie, settings, wanted

TOKENS = 48
NONSENSE = (b"", b"[]", b'{"model": ', b"\xff\xfe", b'{"model": "other", "prompt": "x"}')
LOOKS = 12  # at the server's memory
KV_CACHE = 160 << 20  # bytes: what 64 texts take. A larger one is touched page by page for as long as there is traffic
KINDS = {"plain": 0.5, "stream": 0.3, "cancelled": 0.1, "nonsense": 0.1}  # of the requests


@dataclass
class Tally:
    """What happened at one concurrency."""

    concurrency: int
    latencies: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    wrong: list[str] = field(default_factory=list)
    ties: int = 0

    def row(self) -> str:
        p50, p95, p99 = np.percentile(self.latencies or [float("nan")], [50, 95, 99])
        counts = " | ".join(str(self.counts[kind]) for kind in KINDS)
        return (
            f"| {self.concurrency} | {counts} | {self.tokens / self.seconds:.0f} | {p50:.2f} | {p95:.2f} | {p99:.2f} "
            f"| {len(self.wrong)} | {self.ties} |"
        )


@dataclass(frozen=True)
class Traffic:
    """Requests to one server, and what the transformers side makes of them."""

    name: str
    model: Any
    cases: list[Case]
    expected: list[list[int]]
    client: httpx.AsyncClient

    async def one(self, drawn: random.Random, tally: Tally) -> None:
        kind = drawn.choices(list(KINDS), list(KINDS.values()))[0]
        tally.counts[kind] += 1
        if kind == "nonsense":
            made = await self.client.post("/v1/completions", content=drawn.choice(NONSENSE), headers=JSON)
            if not 400 <= made.status_code < 500:
                tally.wrong.append(f"nonsense was answered by {made.status_code}")
            return
        place = drawn.randrange(len(self.cases))
        begun = time.monotonic()
        stop_after = drawn.randrange(1, 8) if kind == "cancelled" else None
        found = await (self._whole(place) if kind == "plain" else self._streamed(place, stop_after))
        tally.tokens += len(found)
        if kind != "cancelled":
            tally.latencies.append(time.monotonic() - begun)
            self._check(place, found, tally)

    def _check(self, place: int, found: list[int], tally: Tally) -> None:
        case, expected = self.cases[place], self.expected[place]
        if found == expected:
            return
        if is_near_tie(self.model, case, found, expected):
            tally.ties += 1
        else:
            tally.wrong.append(f"{case.asked}: {found} and not {expected}")

    async def _whole(self, place: int) -> list[int]:
        made = await self.client.post("/v1/completions", json=self._body(place))
        made.raise_for_status()
        return made.json()["choices"][0]["token_ids"]

    async def _streamed(self, place: int, stop_after: int | None) -> list[int]:
        found: list[int] = []
        async with self.client.stream("POST", "/v1/completions", json=self._body(place) | {"stream": True}) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                found += httpx.Response(200, text=line[6:]).json()["choices"][0].get("token_ids") or []
                if stop_after is not None and len(found) >= stop_after:
                    break  # the connection is closed in the middle of an answer
        return found

    def _body(self, place: int) -> dict[str, Any]:
        case = self.cases[place]
        body = {"model": self.name, "prompt": list(case.prompt), "temperature": 0, "max_tokens": TOKENS}
        return body | {"return_token_ids": True, "ignore_eos": False, "vllm_xargs": case.asked or {"loopcd": False}}


JSON = {"content-type": "application/json"}


async def run(traffic: Traffic, concurrency: int, seconds: float, seed: int) -> Tally:
    tally, end, begun = Tally(concurrency), time.monotonic() + seconds, time.monotonic()

    async def keep_asking(number: int) -> None:
        drawn = random.Random(seed * 1000 + number)
        while time.monotonic() < end:
            await traffic.one(drawn, tally)

    await asyncio.gather(*(keep_asking(number) for number in range(concurrency)))
    tally.seconds = time.monotonic() - begun
    return tally


async def soak(name: str, server: psutil.Process, url: str, seconds: float, levels: list[int]) -> bool:
    """Whether all was well; prints the table."""
    model, tokenizer = load(name)
    loops = sorted({1, model.num_loops - 1})
    prompts = [tokenizer(each.prompt).input_ids for each in steps.problems("steps", "test", 24)]  # pyright: ignore
    asked = settings([loops[0], loops[-1]])
    cases = [Case(tuple(prompt), asked[number % len(asked)]) for number, prompt in enumerate(prompts)]
    expected = wanted(model, tokenizer, cases, TOKENS)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        traffic = Traffic(name, model, cases, expected, client)
        await run(traffic, max(levels), min(60.0, seconds / 10), seed=99)  # until what is allocated once is allocated
        memory = [resident(server)]
        watching = asyncio.create_task(watch(server, seconds / LOOKS, memory))
        most_first = sorted(levels, reverse=True)  # more at once take more memory, once
        tallies = [await run(traffic, level, seconds / len(levels), seed) for seed, level in enumerate(most_first)]
        watching.cancel()
    memory.append(resident(server))
    click.echo(f"\n{name}: memory in MB, over the time: {', '.join(f'{each / 1e6:.0f}' for each in memory)}\n")
    click.echo(f"| at once | {' | '.join(KINDS)} | tokens/s | p50 s | p95 s | p99 s | wrong | near ties |")
    click.echo("|---:|" + "---:|" * (len(KINDS) + 6))
    for tally in tallies:
        click.echo(tally.row())
        for line in tally.wrong[:3]:
            click.echo(f"wrong: {line}", err=True)
    half = memory[len(memory) // 2 :]
    return not any(tally.wrong for tally in tallies) and max(half) < 1.02 * half[0]


async def watch(server: psutil.Process, every: float, found: list[int]) -> None:
    while True:
        await asyncio.sleep(every)
        found.append(resident(server))


def resident(server: psutil.Process) -> int:
    """Bytes of the server and its workers."""
    return sum(each.memory_info().rss for each in [server, *server.children(recursive=True)])


@contextmanager
def served(name: str, folder: Path) -> Any:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    loops = {"tiny-huginn": "1,11", "tiny-ouro": "1,3"}[name]
    command = [sys.executable, "-m", "loopcd.cli", "serve", name, "--port", str(port), "--amateur-loops", loops]
    command += ["--max-num-seqs", "64", "--kv-cache-memory-bytes", str(KV_CACHE)]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if running.poll() is not None:
                raise SystemExit(f"the server of {name} did not start: {(folder / 'log').read_text()[-3000:]}")
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.5)
        yield psutil.Process(running.pid), url
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--models", default="tiny-huginn,tiny-ouro")
    parser.add_argument("--concurrency", default="1,4,16,64")
    given = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    names, levels = given.models.split(","), [int(each) for each in given.concurrency.split(",")]
    fine = True
    for name in names:
        with tempfile.TemporaryDirectory() as folder, served(name, Path(folder)) as (server, url):
            fine &= asyncio.run(soak(name, server, url, 60 * given.minutes / len(names), levels))
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    main()
