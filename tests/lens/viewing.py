"""What the tests of the viewer share: traces of a small model, and pages that complain when a script fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import loopcd
from loopcd.evaluation.engine import LocalEngine
from loopcd.lens.examples import traces_by
from loopcd.lens.server import prepare
from loopcd.tracing import LoopTrace, Written, describe

MADE = ("One, two, three: ", "A loop is ")
LENGTH = 24
REFUSED = "responded with a status of 400"  # the browser's own note on a request that the page then explains
SETTING = {"amateur_loop": 2, "strength": 0.4}


def paired_traces(engine: LocalEngine, prompt: str, length: int = LENGTH, **extra: Any) -> list[LoopTrace]:
    """Greedy's and LoopCD's text of a prompt, traced for the same setting."""
    methods, traces = [loopcd.Greedy(), loopcd.LoopCD(**SETTING)], list[LoopTrace]()
    for method in methods:
        made = loopcd.generate(engine.model, engine.tokenizer, prompt, method, max_new_tokens=length)
        traces += traces_by(engine, method, methods, [Written.of(prompt, made, describe(method), item=prompt, **extra)])
    return traces


@contextmanager
def open_page(browser: Any, address: str, wait: str = ".token", **options: Any) -> Iterator[Any]:
    """A page in a context of its own; an error in it, or anything that its policy refused, fails the test."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: problems.append(message.text) if message.type == "error" and REFUSED not in message.text else None,
    )
    page.goto(address)
    if wait:
        page.wait_for_selector(wait)
    yield page
    context.close()
    assert problems == []


def numbers(page: Any, script: str) -> list[float]:
    """A list of numbers that a script gives."""
    return page.evaluate(f"Array.from({script})")


def select(page: Any, side: str, position: int) -> None:
    page.evaluate("([side, position]) => lens.pick({ side, position })", [side, position])


def overflow(page: Any) -> int:
    """Pixels by which the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@contextmanager
def serving(viewer: Any) -> Iterator[str]:
    """The viewer served for real, from another thread; the address of its page."""
    server, listener, address = prepare(viewer)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()
