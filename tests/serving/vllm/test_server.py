"""The server under OpenAI's client: right answers side by side, bad requests refused by name, and nothing stops it."""

# pyright: reportMissingImports=false

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI

from serving.parity import Case, assert_same

pytestmark = pytest.mark.slow
START = 1800  # seconds that a server may take to start on a busy machine
FIELDS = ("loopcd", "loopcd_amateur_loop", "loopcd_strength", "loopcd_plausibility", "loopguidance", "loopguidance_weight")


@dataclass(frozen=True)
class Server:
    url: str
    name: str
    it: Any  # the subject: what transformers makes of the same requests

    def body(self, case: Case, **more: Any) -> dict[str, Any]:
        body = {"model": self.name, "prompt": list(case.prompt), "temperature": 0, "max_tokens": self.it.tokens}
        return body | {"return_token_ids": True} | ({"vllm_xargs": case.asked} if case.asked else {}) | more

    def call(self, case: Case, **more: Any) -> dict[str, Any]:
        """The same for OpenAI's client, which takes vLLM's own fields apart."""
        body = self.body(case, **more)
        extra = {key: body.pop(key) for key in ("vllm_xargs", "return_token_ids") if key in body}
        return body | {"extra_body": extra}


@pytest.fixture(scope="module", params=["tiny-huginn", "tiny-ouro"])  # the second with two replicas
def server(request: pytest.FixtureRequest, subject: Callable[[str], Any], tmp_path_factory: Any) -> Iterator[Server]:
    replicas = ["--data-parallel", "2"] if request.param == "tiny-ouro" else []
    with serving(request.param, subject(request.param), tmp_path_factory.mktemp("server") / "log", *replicas) as running:
        yield running


@contextmanager
def serving(name: str, it: Any, log: Path, *more: str) -> Iterator[Server]:
    """`loopcd serve`, and what it has to leave behind when it is stopped: nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    loops = ",".join(map(str, it.amateur_loops))
    command = [sys.executable, "-m", "loopcd.cli", "serve", name, "--port", str(port), "--amateur-loops", loops, *more]
    command += ["--max-num-seqs", "16", "--kv-cache-memory-bytes", str(256 << 20)]
    with log.open("w") as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, running, log)
        yield Server(url, name, it)
        assert running.poll() is None, log.read_text()[-3000:]
    finally:
        workers = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    said = log.read_text()
    assert "killing" not in said and "sending SIGTERM" not in said, said[-3000:]
    assert psutil.wait_procs(workers, timeout=10)[1] == []


def wait_for(url: str, running: subprocess.Popen[Any], log: Path) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < START:
        assert running.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not start: {log.read_text()[-3000:]}")


async def answers(server: Server, cases: list[Case], streamed: Callable[[int], bool]) -> list[list[int]]:
    """All at once."""
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=START, max_retries=0) as client:

        async def one(number: int, case: Case) -> list[int]:
            if not streamed(number):
                made = await client.completions.create(**server.call(case))
                return made.choices[0].token_ids  # pyright: ignore[reportAttributeAccessIssue]
            tokens: list[int] = []
            async for piece in await client.completions.create(**server.call(case, stream=True)):
                tokens += getattr(piece.choices[0], "token_ids", None) or []
            return tokens

        return await asyncio.gather(*(one(number, case) for number, case in enumerate(cases)))


def test_greedy_and_loopcd_answers_side_by_side_streaming_and_not(server: Server) -> None:
    found = asyncio.run(answers(server, server.it.cases, lambda number: number % 2 == 0))
    assert_same(server.it.model, server.it.cases, found, server.it.expected)


@pytest.mark.parametrize("family", ["nanbeige", "olmo"])
def test_the_other_families_too(family: str, subject: Callable[[str], Any], tmp_path: Path) -> None:
    """Whose layers a retrofitted model has, its weights' names alone tell: the process that loads them has to be told."""
    it = subject(family)
    with serving(str(it.folder), it, tmp_path / "log") as server:
        found = asyncio.run(answers(server, it.cases, lambda number: number % 2 == 0))
    assert_same(it.model, it.cases, found, it.expected)


def test_the_text_is_that_of_the_tokens(server: Server) -> None:
    case, tokens = server.it.cases[1], server.it.expected[1]
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=START)
    made = client.completions.create(**server.call(case))
    assert made.choices[0].text == server.it.tokenizer.decode(tokens, skip_special_tokens=True)
    assert [each.id for each in client.models.list()] == [server.name]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"loopcd_amateur_loop": 99}, "loopcd_amateur_loop"),
        ({"loopcd_amateur_loop": "first"}, "loopcd_amateur_loop"),
        ({"loopcd_strength": -0.5}, "loopcd_strength"),
        ({"loopcd_strength": [0.5]}, "loopcd_strength"),
        ({"loopcd_plausibility": 2}, "loopcd_plausibility"),
        ({"loopcd_strenght": 0.3}, "loopcd_strenght"),
        ({"loopcd": "maybe"}, "loopcd"),
        ({"loopguidance_weight": -1}, "loopguidance_weight"),
        ({"loopguidance_weight": 1, "loopcd": True}, "loopguidance"),
    ],
)
def test_a_bad_field_is_http_400_and_named(asked: dict[str, Any], field: str, server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=START, max_retries=0)
    case = Case(server.it.cases[0].prompt, asked)
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(**server.call(case))
    assert caught.value.status_code == 400 and field in caught.value.message


def nonsense(random_: random.Random, server: Server) -> tuple[str | bytes, bool]:
    """A body, and whether what is odd about it is in LoopCD's fields; there it may happen to be allowed."""
    good = server.body(server.it.cases[0])
    value = random_.choice(
        ["x", "-1", "1e400", "[]", "{}", "null", "true", "[[1]]", '"\\u0000"', "1" * 400, "-0.0", "NaN", "0.1"]
    )
    field = random_.choice(FIELDS)
    others = ['{"model": ', "", "[]", "null", '{"prompt": 1}', b"\xff\xfe\x00", '{"model": "other", "prompt": "x"}']
    others += [f'{{"model": "{server.name}", "prompt": {each}}}' for each in ("[-1]", "[999999]", '""', "[]", "{}", "[1e9]")]
    others += [f'{{"model": "{server.name}", "prompt": "x", "max_tokens": {each}}}' for each in ("-5", "1e99", '"x"')]
    others += [
        f'{{"model": "{server.name}", "prompt": "x", "vllm_xargs": {each}}}' for each in ('"x"', "[1]", '{"a": {"b": 1}}')
    ]
    if random_.random() < 0.5:
        return random_.choice(others), False
    text = httpx.Request("POST", "http://x", json=good).content.decode()
    return text[:-1] + f', "vllm_xargs": {{"{field}": {value}}}}}', True


def test_sixty_four_at_once_with_cancellations_and_nonsense_stop_nothing(server: Server) -> None:
    if server.name != "tiny-huginn":
        return  # one of both is enough
    drawn = random.Random(0)
    cases = [drawn.choice(server.it.cases) for _ in range(24)]
    places = [server.it.cases.index(case) for case in cases]
    found, answered = asyncio.run(storm(server, cases, drawn))
    assert_same(server.it.model, cases, found, [server.it.expected[place] for place in places])
    assert len(answered) == 24
    assert [each for each in answered if each[0] not in ((200, 400) if each[1] else range(200, 500))] == []
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    found = asyncio.run(answers(server, server.it.cases, lambda _: False))
    assert_same(server.it.model, server.it.cases, found, server.it.expected)


async def storm(server: Server, cases: list[Case], drawn: random.Random) -> tuple[list[list[int]], list[tuple[Any, ...]]]:
    """24 good requests, 24 bodies of nonsense and 16 that are cancelled on the way, all at once.

    Gives the good ones' tokens, and of each nonsense the status, whether it was in LoopCD's fields, and the body.
    """
    bodies = [nonsense(drawn, server) for _ in range(24)]
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=server.url, timeout=START, limits=limits) as client:

        async def send(body: str | bytes) -> int:
            made = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            return made.status_code

        async def cancelled(case: Case, pieces: int) -> None:
            async with client.stream("POST", "/v1/completions", json=server.body(case, stream=True)) as stream:
                async for _ in stream.aiter_lines():
                    pieces -= 1
                    if pieces < 0:
                        return

        async def dropped(case: Case, seconds: float) -> None:
            work = asyncio.create_task(send(httpx.Request("POST", "http://x", json=server.body(case)).content))
            await asyncio.sleep(seconds)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

        leaving = [cancelled(drawn.choice(server.it.cases), drawn.randrange(4)) for _ in range(8)]
        leaving += [dropped(drawn.choice(server.it.cases), drawn.random()) for _ in range(8)]
        good, statuses, _ = await asyncio.gather(
            answers(server, cases, lambda number: number % 3 == 0),
            asyncio.gather(*(send(body) for body, _ in bodies)),
            asyncio.gather(*leaving),
        )
    return good, [(status, ours, body) for status, (body, ours) in zip(statuses, bodies, strict=True)]


def test_the_example_asks_a_server(server: Server) -> None:
    script = Path(__file__).parents[3] / "examples" / "serve_and_query.py"
    done = subprocess.run([sys.executable, str(script), "--at", server.url], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("greedy:") and "\nLoopCD:" in done.stdout
