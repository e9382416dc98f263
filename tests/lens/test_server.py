"""The server, spoken to over its socket: whom it answers, and what it answers with."""

import http.client
import json
import signal
import socket
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import loopcd
from lens.viewing import MADE, SETTING, paired_traces, serving
from loopcd.decoding.registry import METHODS
from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.task import TaskOptions
from loopcd.evaluation.tasks import make_task
from loopcd.lens import form, guard, server
from loopcd.lens.server import Viewer, prepare
from loopcd.tracing import LoopTrace, TraceWriter
from tools import byte_tokenizer, tiny_huginn, tiny_ouro

pytestmark = pytest.mark.slow


class Client:
    """Sends one request at a time, with the headers that the page would send unless told otherwise."""

    def __init__(self, address: str) -> None:
        self.host, self.token = urlsplit(address).netloc, address.rpartition("token=")[2]

    def __call__(self, path: str, body: Any = None, method: str | None = None, **headers: str | None) -> tuple[int, Any]:
        sent = {"Host": self.host, "X-Lens-Token": self.token, "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}  # pyright: ignore
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.putrequest(method or ("GET" if body is None else "POST"), path, skip_host=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        if data is not None:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        text = answer.read().decode()
        self.headers = answer.headers
        connection.close()
        kind = answer.headers.get("content-type", "")
        if kind.startswith("application/x-ndjson"):
            return answer.status, [json.loads(line) for line in text.splitlines()]
        return answer.status, json.loads(text) if kind.startswith("application/json") else text


@pytest.fixture(scope="module")
def viewer(engine: LocalEngine) -> Viewer:
    return Viewer(engine, make_task("steps-easy", TaskOptions(limit=20, max_new_tokens=8)))


@pytest.fixture(scope="module")
def address(viewer: Viewer) -> Iterator[str]:
    with serving(viewer) as address:
        yield address


@pytest.fixture
def ask(address: str) -> Client:
    return Client(address)


def asked(prompt: str = MADE[0], length: int = 12, right: Any = "loopcd") -> dict[str, Any]:
    other = {"name": right, "settings": dict(SETTING)} if right == "loopcd" else right
    return {"prompt": prompt, "left": {"name": "greedy", "settings": {}}, "right": other, "max_new_tokens": length}


# Whom it answers


def test_the_page_comes_to_who_has_the_token(ask: Client) -> None:
    status, page = ask(f"/?token={ask.token}", X_Lens_Token=None)
    assert status == 200 and page.startswith("<!doctype html>")
    assert "frame-ancestors 'none'" in ask.headers["content-security-policy"]
    assert ask.headers["referrer-policy"] == "no-referrer" and ask.headers["cache-control"] == "no-store"
    assert ask("/")[0] == ask("/?token=")[0] == ask(f"/?token={ask.token}x")[0] == 403


def test_every_start_has_a_token_of_its_own(viewer: Viewer, ask: Client) -> None:
    with serving(viewer) as other:
        assert Client(other).token != ask.token and len(ask.token) >= 32
        assert Client(other)(f"/?token={ask.token}")[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "example.org"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.example.org:80"},
        {"Host": None},
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"X_Lens_Token": None},
        {"X_Lens_Token": "wrong"},
    ],
)
def test_others_are_refused(ask: Client, headers: dict[str, str | None]) -> None:
    for path, body in (("/api/generate", asked(length=1)), ("/api/files", b"x"), ("/api/examples/1", None)):
        assert ask(path, body, **headers)[0] in (400, 403, 421), (path, headers)
    if "X_Lens_Token" not in headers:
        assert ask(f"/?token={ask.token}", **headers)[0] in (400, 403, 421)


def test_the_page_itself_is_answered(ask: Client) -> None:
    status, events = ask("/api/generate", asked(length=1), Origin=f"http://{ask.host}", Sec_Fetch_Site="same-origin")
    assert status == 200 and events[-1] == {"event": "done"}


def test_only_loopback_is_listened_on(address: str) -> None:
    port = urlsplit(address).port or 0
    outward = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for host in [*(each for each in outward if not str(each).startswith("127.")), "127.0.0.2"]:
        with pytest.raises(OSError), socket.create_connection((str(host), port), timeout=2):  # noqa: PT011
            pass


# Limits


def test_large_bodies_are_refused_before_they_are_read(ask: Client) -> None:
    assert ask("/api/generate", b" " * (guard.SMALL_BODY + 1))[0] == 413
    connection = http.client.HTTPConnection(ask.host, timeout=60)
    connection.putrequest("POST", "/api/files")
    for name, value in (("X-Lens-Token", ask.token), ("Content-Length", str(guard.LARGEST_FILE + 1))):
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_without_a_length_is_counted(ask: Client) -> None:
    connection = http.client.HTTPConnection(ask.host, timeout=60)
    parts = (b" " * 50_000 for _ in range(20))
    connection.request("POST", "/api/generate", parts, {"X-Lens-Token": ask.token}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "Expecting"),
        ([], "not an object"),
        (asked(prompt="  "), "prompt is empty"),
        (asked(length=0), "whole number"),
        (asked(length=10**6), "whole number"),
        (asked(prompt="x" * 5000), "room for"),
        ({**asked(), "left": None}, "left"),
        (asked(right={"name": "nonsense", "settings": {}}), "no method 'nonsense'"),
        (asked(right={"name": "loopcd", "settings": {"amateur_loop": 99}}), "amateur_loop=99"),
        (asked(right={"name": "loopcd", "settings": {"strength": "much"}}), "strength"),
        (asked(right={"name": "loopcd", "settings": {"strength": [1]}}), "strength"),
        (asked(right={"name": "greedy", "settings": {"exit": 1}}), "no setting"),
        (asked(right={"name": "selfeval", "settings": {"candidates": 100_000}}), "candidates=100000: a number of at least 1"),
        (asked(right={"name": "selfeval", "settings": {"temperature": 9}}), "no setting"),  # of the form
        (asked(right={"name": "loopcd", "settings": {"strength": True}}), "strength=True: a number"),
        (asked(right={"name": "loopcd", "settings": {"strength": float("inf")}}), "strength=inf: a number"),
        (asked(right={"name": "loopcd", "settings": {"plausibility": 7}}), "at most 1"),
        (asked(right={"name": "mti", "settings": {"negative_prompt": "x" * 3000}}), "at most 2000 characters"),
        (asked(right={"name": "mti", "settings": {"negative_prompt": 3}}), "a text of at most"),
        (asked(length=True), "whole number"),  # pyright: ignore[reportArgumentType]
        (b"[" * 100_000, "not JSON"),
        (b'{"left":' * 20_000, "not JSON"),
        (asked(right={"name": "selfeval", "settings": {"candidates": 2}}), "reads the label"),  # by this model's tokenizer
    ],
)
def test_a_bad_request_gets_a_reason(ask: Client, body: Any, said: str) -> None:
    status, answer = ask("/api/generate", body)
    assert said in (answer["error"] if status == 400 else answer[-1]["message"])
    assert ask("/api/generate", asked(length=1))[1][-1] == {"event": "done"}  # and the next one is answered


def test_the_length_that_the_page_begins_with_is_allowed(viewer: Viewer) -> None:
    long = replace(viewer, max_new_tokens=700)
    assert long.page_data()["served"]["longest"] == 700
    long.generate(asked(length=700), lambda: None)
    with pytest.raises(ValueError, match="701 tokens: a whole number from 1 to 700"):
        long.generate(asked(length=701), lambda: None)


@pytest.mark.parametrize("make", [tiny_huginn, tiny_ouro])
def test_the_form_shows_what_holds_where_nothing_is_chosen(make: Any) -> None:
    """Each method's own defaults, and the model's preset for LoopCD alone."""
    engine = LocalEngine(make(), byte_tokenizer(), "tiny-random")
    for offered in form.offered(engine):
        settled = METHODS[offered["name"]]().settled(engine.model)
        shown = {each["name"]: each["value"] for each in offered["settings"] if not each["rare"]}
        assert shown == {name: getattr(settled, name) for name in shown}


def test_unknown_paths_are_not_found(ask: Client) -> None:
    assert ask("/api/examples/none")[0] == 404
    assert ask("/api/nothing")[0] == 404
    assert ask("/../pyproject.toml")[0] == 404


# What it answers with


def tokens_of(events: list[dict[str, Any]], side: str) -> list[dict[str, Any]]:
    return [event["trace"] for event in events if event["event"] == "token" and event["side"] == side]


def test_live_texts_are_those_of_generate_and_live_traces_those_of_the_text(ask: Client, engine: LocalEngine) -> None:
    _, events = ask("/api/generate", asked())
    for side, wanted in zip(("left", "right"), paired_traces(engine, MADE[0], 12), strict=True):
        seen = tokens_of(events, side)
        ids = [np.frombuffer(_bytes(each["arrays"]["token_ids"]), np.int32)[0] for each in seen]
        assert ids == wanted.token_ids.tolist()
        logits = [np.frombuffer(_bytes(each["arrays"]["logit"]), np.float32) for each in seen]
        np.testing.assert_allclose(logits, wanted.logit, atol=2e-4)
        (end,) = [event["trace"] for event in events if event["event"] == "end" and event["side"] == side]
        assert (end["text"], end["pieces"], end["amateur_loop"]) == (wanted.text, list(wanted.pieces), SETTING["amateur_loop"])
    order = [event["side"] for event in events if event["event"] == "token"]
    assert order[:6] == ["left", "right"] * 3  # both at once


def _bytes(array: dict[str, str]) -> bytes:
    from base64 import b64decode

    return b64decode(array["data"])


@pytest.mark.parametrize(
    "method",
    [
        {"name": "noisecd", "settings": {"noise": 0.2}},
        {"name": "mti", "settings": {"entropy_threshold": 0.1}},
        {"name": "greedy", "settings": {"exit_threshold": 0.2, "min_loops": 1}},
        {"name": "loopcd", "settings": {"amateur_loop": 1.0, "exit_threshold": 0.2, "min_loops": 2}},
        None,
    ],
)
def test_every_method_can_be_watched(ask: Client, method: Any) -> None:
    _, events = ask("/api/generate", asked(right=method, length=4))
    assert events[-1] == {"event": "done"}
    assert len(tokens_of(events, "left")) == 4
    assert (len(tokens_of(events, "right")) >= 1) == (method is not None)


def test_who_goes_away_frees_the_model(ask: Client) -> None:
    connection = http.client.HTTPConnection(ask.host, timeout=60)
    body = json.dumps(asked(length=200))
    connection.request("POST", "/api/generate", body, {"X-Lens-Token": ask.token, "Content-Type": "application/json"})
    assert b"start" in connection.getresponse().readline()
    connection.close()
    _, events = ask("/api/generate", asked(length=2))
    assert events[-1] == {"event": "done"}


def test_who_does_not_read_does_not_keep_the_model_from_others(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()

    def much(*_: Any) -> Iterator[dict[str, Any]]:
        try:
            while True:
                yield {"event": "token", "trace": "x" * 1_000_000}
        finally:
            ended.set()

    monkeypatch.setattr(server, "PATIENCE", 0.2)
    connection = http.client.HTTPConnection(ask.host, timeout=60)
    with monkeypatch.context() as patched:
        patched.setattr(server, "live_events", much)
        connection.request("POST", "/api/generate", json.dumps(asked()), {"X-Lens-Token": ask.token})
        assert ended.wait(20)
    assert ask("/api/generate", asked(length=2))[1][-1] == {"event": "done"}
    connection.close()


def endless(*_: Any, interrupt: Any = None, **__: Any) -> Any:
    """Stands for a method that thinks for hours before its first token."""
    WORKING.set()
    while True:
        if interrupt is not None:
            interrupt()
        time.sleep(0.01)


WORKING = Event()
THINKING = {"name": "selfeval", "settings": {"candidates": 16}}


@contextmanager
def thinking(ask: Client, monkeypatch: pytest.MonkeyPatch, path: str) -> Iterator[http.client.HTTPConnection]:
    """While the model is at work for a request whose answer has not begun; the connection is closed at the end."""
    WORKING.clear()
    connection = http.client.HTTPConnection(ask.host, timeout=60)
    with monkeypatch.context() as patched:
        patched.setattr(
            "loopcd.lens.live.generate" if path == "/api/generate" else "loopcd.evaluation.engine.generate", endless
        )
        headers = {"X-Lens-Token": ask.token, "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(asked(right=THINKING)), headers)
        assert WORKING.wait(60)
    yield connection
    connection.close()


@pytest.mark.parametrize("path", ["/api/generate", "/api/search"])
def test_who_goes_away_frees_the_model_also_while_it_thinks(ask: Client, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with thinking(ask, monkeypatch, path):
        pass
    _, events = ask("/api/generate", asked(length=2))
    assert events[-1] == {"event": "done"}


def test_the_server_ends_while_the_model_thinks(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`serving` stops it as Ctrl-C does, and fails where it does not end."""
    later = ExitStack()
    with serving(viewer) as address:
        later.enter_context(thinking(Client(address), monkeypatch, "/api/generate"))
    later.close()


def test_an_interrupt_ends_what_the_model_is_at(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer just ends: nothing has to be cancelled, and no traceback is left on the terminal."""
    own = replace(viewer, ending=Event())
    server, listener, address = prepare(own)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    with thinking(Client(address), monkeypatch, "/api/generate") as connection:
        server.handle_exit(signal.SIGTERM, None)
        assert connection.getresponse().read() == b""
    thread.join(60)
    assert not thread.is_alive()


def test_the_search_keeps_problems_on_which_the_texts_differ(ask: Client) -> None:
    wild = {"left": {"name": "greedy", "settings": {}}, "right": {"name": "loopcd", "settings": {"strength": 3}}}
    _, events = ask("/api/search", wild)
    examples = [event["example"] for event in events if event["event"] == "example"]
    assert 1 <= len(examples) <= 12 and all(each["differs"] for each in examples)
    assert {each["outcome"] for each in examples} <= {"gained", "lost", "right", "wrong"}
    assert events[-1]["note"].startswith("Chosen because the texts differ")
    _, found = ask(f"/api/examples/{examples[0]['id']}")
    greedy, other = found["traces"]
    assert greedy["prompt"] == other["prompt"] == examples[0]["prompt"]
    assert greedy["method"] == "Greedy()" and other["method"] == "LoopCD(strength=3)"
    assert greedy["extra"]["correct"] in (True, False)


def test_traces_are_for_the_setting_that_wrote_the_text(ask: Client) -> None:
    pair = {side: {"name": "loopcd", "settings": {"strength": strength}} for side, strength in (("left", 3), ("right", 5))}
    _, events = ask("/api/search", pair)
    example = next(event["example"] for event in events if event["event"] == "example")
    _, found = ask(f"/api/examples/{example['id']}")
    assert [each["strength"] for each in found["traces"]] == [3, 5]
    _, events = ask("/api/generate", {**asked(length=2), **pair})
    assert [event["trace"]["strength"] for event in events if event["event"] == "start"] == [3, 5]


# Files


@pytest.fixture(scope="module")
def trace_file(engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "made.npz"
    with TraceWriter(path) as writer:
        for prompt in MADE:
            for trace in paired_traces(engine, prompt, 6):
                writer.add(trace)
    return path


def test_a_trace_file_is_opened(ask: Client, trace_file: Path, engine: LocalEngine) -> None:
    status, answer = ask("/api/files?name=made.npz", trace_file.read_bytes())
    assert status == 200 and [each["prompt"] for each in answer["examples"]] == list(MADE)
    _, first = ask(f"/api/examples/{answer['examples'][0]['id']}")
    wanted: list[LoopTrace] = paired_traces(engine, MADE[0], 6)
    assert [each["pieces"] for each in first["traces"]] == [list(trace.pieces) for trace in wanted]


def test_a_broken_file_gets_a_reason(ask: Client, trace_file: Path) -> None:
    whole = trace_file.read_bytes()
    spoilt = bytearray(whole)
    for place in range(200, len(whole) - 4000, 97):
        spoilt[place] ^= 0xFF
    for content in (b"", b"not a zip", whole[: len(whole) // 2], bytes(spoilt)):
        status, answer = ask("/api/files?name=x.npz", content)
        assert status == 400 and answer["error"] and "/" not in answer["error"], answer
    assert loopcd.read_traces(trace_file)  # the one that was not spoilt


@pytest.mark.parametrize("change", [{"method": None}, {"extra": []}, {"extra": {"gold": float("nan")}}, {"strength": "x"}])
def test_a_bad_trace_does_not_spoil_the_page(ask: Client, trace_file: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    with np.load(trace_file) as arrays:
        members = dict(arrays)
    facts = json.loads(members["000000/facts"].tobytes())
    members["000000/facts"] = np.frombuffer(json.dumps({**facts, **change}).encode(), np.uint8)
    np.savez(tmp_path / "bad.npz", **members)  # pyright: ignore[reportArgumentType]
    status, answer = ask("/api/files?name=bad.npz", (tmp_path / "bad.npz").read_bytes())
    assert status == 400 and "trace 0" in answer["error"]
    assert ask(f"/?token={ask.token}")[0] == 200


def test_a_file_that_unpacks_to_too_much_is_refused(ask: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LARGEST_UNPACKED", 1_000_000)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("000000/facts.npy", bytes(1_000_001))
    assert bomb.stat().st_size < 10_000
    status, answer = ask("/api/files?name=bomb.npz", bomb.read_bytes())
    assert status == 400 and "larger than" in answer["error"]
