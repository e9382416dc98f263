"""The viewer with a model behind it: the page, live generation, the search for examples, and trace files."""

import json
import secrets
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, MutableMapping
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Event, Lock
from types import FrameType
from typing import Any

from anyio import CancelScope, Semaphore, fail_after, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from loopcd.decoding import Method
from loopcd.decoding.chat import said
from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.task import Task
from loopcd.lens import form
from loopcd.lens.examples import Example, read_examples, search
from loopcd.lens.guard import LARGEST_FILE, Guard, Send, TooLarge
from loopcd.lens.live import Events, Interrupt, live_events
from loopcd.lens.page import write_page
from loopcd.tracing import read_traces

HOST = "127.0.0.1"
LONGEST = 600  # tokens of a live text, unless the viewer was started with more
PATIENCE = 30.0  # seconds for which a reader may take nothing
LARGEST_UNPACKED = 8 * LARGEST_FILE


@dataclass
class Viewer:
    """All that the server knows. One thing at a time is run on the model."""

    engine: LocalEngine
    task: Task | None = None  # what a search looks at
    prompt: str = ""
    examples: list[Example] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)  # of LoopCD, which stands beside greedy to begin with
    max_new_tokens: int = 112
    limit: int = 100  # examples taken of a file
    chat: bool = False  # a prompt is what a user says: it goes through the tokenizer's template
    files: Iterator[int] = field(default_factory=lambda: count(1))
    ending: Event = field(default_factory=Event)  # set when the server is to end: all work stops

    @property
    def longest(self) -> int:
        return max(LONGEST, self.max_new_tokens)

    def page_data(self) -> dict[str, Any]:
        chosen = {"left": {"name": "greedy", "settings": {}}, "right": {"name": "loopcd", "settings": self.settings}}
        return {
            "title": f"{self.engine.name}, {self.engine.num_loops or self.engine.model.num_loops} loops",
            "served": {
                "prompt": self.prompt,
                "suggestion": self.task.items[0].prompt if self.task is not None else "",
                "methods": form.offered(self.engine),
                "chosen": chosen,
                "searchable": self.task is not None,
                "max_new_tokens": self.max_new_tokens,
                "longest": self.longest,
                "examples": [example.summary() for example in self.examples],
            },
        }

    # What a request asks for

    def generate(self, asked: dict[str, Any], interrupt: Interrupt) -> Events:
        prompt, messages, length = asked.get("prompt"), asked.get("messages"), asked.get("max_new_tokens")
        if messages is not None:
            if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
                raise ValueError("messages: a list of objects, each with a role and a content")
            prompt = messages
        elif not isinstance(prompt, str) or not prompt.strip():
            raise ValueError("the prompt is empty: at least one token")
        elif self.chat:
            prompt = said(prompt)
        if type(length) is not int or not 1 <= length <= self.longest:
            raise ValueError(f"{length} tokens: a whole number from 1 to {self.longest}")
        stop = self.task.stop if self.task else ()
        return live_events(self.engine, prompt, self.methods(asked), length, stop, interrupt)

    def search(self, asked: dict[str, Any], interrupt: Interrupt) -> Events:
        if self.task is None:
            raise ValueError("there is no task to look at: start `loopcd lens` with --task")
        pair = self.methods(asked)
        if len(pair) != 2:
            raise ValueError("a search compares two methods: choose one to stand beside the first")
        return self._searched(self.task, (pair[0], pair[1]), interrupt)

    def _searched(self, task: Task, pair: tuple[Method, Method], interrupt: Interrupt) -> Events:
        note, number = "", next(self.files)
        for found in search(self.engine, task, pair, interrupt=interrupt):
            if isinstance(found, Example):
                self.examples.append(replace(found, id=f"{number}-{found.id}"))
                yield {"event": "example", "example": self.examples[-1].summary()}
            else:
                note = found.sentence(task, pair)
                yield {"event": "progress", "done": found.done, "differ": found.differ}
        yield {"event": "done", "note": note}

    def methods(self, asked: dict[str, Any]) -> list[Method]:
        sides = [side for side in ("left", "right") if asked.get(side) is not None]
        if "left" not in sides:
            raise ValueError("left: a method")
        return [form.chosen(asked[side], side, self.engine) for side in sides]

    def read(self, path: Path, name: str) -> dict[str, Any]:
        """The examples of a file that was sent. All that the page will ask of them is made once before they are added."""
        try:
            with closing(read_traces(path)) as packed:
                if packed.unpacked > LARGEST_UNPACKED:
                    raise ValueError(f"unpacked it is larger than {LARGEST_UNPACKED / 1e6:g} MB")
            made, left_out = read_examples([path], self.limit, f"file{next(self.files)}")
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), "").lstrip(" ,:").removeprefix("is ")) from error
        if not made:
            raise ValueError("there is no trace in it")
        for each in made:
            json.dumps([each.summary(), *each.payloads()], allow_nan=False)
        self.examples += made
        rest = f"; {left_out} more are not shown (--limit)" if left_out else ""
        return {"examples": [each.summary() for each in made], "note": f"{len(made)} of {name}{rest}"}


class Stopped(Exception):
    """Whoever asked has gone, or the server ends."""


@dataclass(frozen=True)
class Work:
    """Events in the making, by one thread at a time, until there are no more or one of `ends` says that nobody waits."""

    events: Events
    ends: tuple[Event, ...]
    busy: Lock = field(default_factory=Lock)

    def next(self) -> dict[str, Any] | None:
        with self.busy:
            try:
                _stop_if(*self.ends)
                return next(self.events, None)
            except Stopped:
                return None

    def end(self) -> None:
        with self.busy:
            self.events.close()


class LineStream(StreamingResponse):
    """Lines as they are made. A reader who takes none for long gets no more: others wait for the model."""

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self.lines = lines

    async def stream_response(self, send: Send) -> None:
        async def sent(message: MutableMapping[str, Any]) -> None:
            with fail_after(PATIENCE):
                await send(message)

        async with aclosing(self.lines):
            with suppress(TimeoutError):
                await super().stream_response(sent)


def _stop_if(*ends: Event) -> None:
    if any(end.is_set() for end in ends):
        raise Stopped


def application(viewer: Viewer, port: int, token: str) -> Guard:
    """The web application, guarded."""
    free = Semaphore(1)

    async def page(_: Request) -> Response:
        return HTMLResponse(write_page(viewer.page_data()))

    async def example(request: Request) -> Response:
        found = next((each for each in viewer.examples if each.id == request.path_params["id"]), None)
        if found is None:
            return JSONResponse({"error": "there is no such example"}, 404)
        return JSONResponse({"traces": await to_thread.run_sync(found.payloads)})

    def streamed(make: Callable[[dict[str, Any], Interrupt], Events]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                asked = await request.json()
            except (ValueError, RecursionError) as error:
                raise ValueError(f"the request is not JSON: {error}") from error
            if not isinstance(asked, dict):
                raise ValueError("the request is not an object")
            gone = Event()
            work = Work(make(asked, lambda: _stop_if(gone, viewer.ending)), (gone, viewer.ending))
            return LineStream(lines(work, gone))

        return answer

    async def lines(work: Work, gone: Event) -> AsyncGenerator[bytes, None]:
        async with free:  # a reader who starts something new has stopped what ran before
            try:
                while (event := await to_thread.run_sync(work.next, abandon_on_cancel=True)) is not None:
                    yield json.dumps(event).encode() + b"\n"
            except Exception as error:  # whatever it is, the page says it and the next request is answered
                yield json.dumps({"event": "error", "message": str(error) or type(error).__name__}).encode() + b"\n"
            finally:
                gone.set()
                with CancelScope(shield=True):  # the model is free when the token at hand is finished
                    await to_thread.run_sync(work.end)

    async def files(request: Request) -> Response:
        with tempfile.TemporaryDirectory(prefix="loopcd-lens-") as folder:
            path = Path(folder) / "sent.npz"
            with path.open("wb") as target:
                async for part in request.stream():
                    target.write(part)
            name = request.query_params.get("name", "the file")
            return JSONResponse(await to_thread.run_sync(viewer.read, path, name))

    routes = [
        Route("/", page),
        Route("/api/examples/{id}", example),
        Route("/api/generate", streamed(viewer.generate), methods=["POST"]),
        Route("/api/search", streamed(viewer.search), methods=["POST"]),
        Route("/api/files", files, methods=["POST"]),
    ]
    refused = {ValueError: _refused(400), TooLarge: _refused(413)}
    return Guard(Starlette(routes=routes, exception_handlers=refused), port, token)


def _refused(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: JSONResponse({"error": str(error)}, status)


# -- starting and stopping it, on loopback only


def prepare(viewer: Viewer, port: int = 0) -> tuple[Any, socket.socket, str]:
    """A uvicorn server that does not run yet, its socket, and the address, which holds a fresh token. Port 0: a free one."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            viewer.ending.set()  # what the model is at does not hold up the end
            super().handle_exit(sig, frame)

    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise ValueError(f"--port {port}: {error.strerror}") from error
    taken, token = listener.getsockname()[1], secrets.token_urlsafe(24)
    config = uvicorn.Config(
        application(viewer, taken, token),
        lifespan="off",
        log_level="warning",
        access_log=False,  # it would hold the token
        server_header=False,
        timeout_graceful_shutdown=1,  # a page that reads a stream does not hold up the end
    )
    return Server(config), listener, f"http://{HOST}:{taken}/?token={token}"


def serve(viewer: Viewer, port: int = 0, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until interrupted; `started` is called with the address."""
    server, listener, address = prepare(viewer, port)
    started(address)
    server.run(sockets=[listener])
