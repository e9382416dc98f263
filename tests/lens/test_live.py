"""The served page in a real browser: a prompt in, two texts token by token, stop, files, and the search."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lens.viewing import MADE, SETTING, open_page, paired_traces, serving
from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.task import TaskOptions
from loopcd.evaluation.tasks import make_task
from loopcd.lens import examples_of
from loopcd.lens.server import Viewer
from loopcd.tracing import TraceWriter

pytestmark = pytest.mark.slow


@pytest.fixture
def live(browser: Any, engine: LocalEngine) -> Iterator[Any]:
    """A page without examples, before anything is run."""
    with serving(Viewer(engine, settings=SETTING, max_new_tokens=10)) as address, open_page(browser, address, "#run") as page:
        yield page


def finished(page: Any) -> None:
    page.locator("#stop").wait_for(state="hidden", timeout=60_000)


def pieces(page: Any, side: str) -> list[str]:
    return page.evaluate(f"lens.state.{side}.tokens.map((token) => token.piece)")


def test_a_prompt_becomes_two_texts(live: Any, engine: LocalEngine) -> None:
    live.locator("#run-prompt").fill(MADE[1])
    assert live.locator("#right-amateur_loop").input_value() == str(SETTING["amateur_loop"])
    live.locator("#run button.primary").click()
    live.wait_for_selector(".token")
    finished(live)
    greedy, contrasted = paired_traces(engine, MADE[1], 10)
    assert pieces(live, "left") == list(greedy.pieces) and pieces(live, "right") == list(contrasted.pieces)
    assert live.locator("#message").inner_text() == ""
    assert live.locator("#prompt-text").inner_text() == MADE[1].strip()
    assert live.locator("#example option").count() == 1


def test_settings_of_the_methods_are_sent(live: Any, engine: LocalEngine) -> None:
    live.locator("#run-prompt").fill(MADE[0])
    live.locator("#max-tokens").fill("5")
    live.locator("#right-amateur_loop").fill("4")
    live.locator("#right-strength").fill("0.9")
    live.locator("#run button.primary").click()
    finished(live)
    assert live.evaluate("[lens.state.right.amateurLoop, lens.state.right.strength, lens.state.right.length]") == [4, 0.9, 5]
    live.locator("#method-right").select_option("")
    live.locator("#run button.primary").click()
    live.locator(".cell.right").first.wait_for(state="detached")
    finished(live)
    assert live.evaluate("[lens.state.left.length, lens.state.right]") == [5, None]


def test_each_text_stands_below_its_own_method_and_setting(live: Any) -> None:
    live.locator("#run-prompt").fill(MADE[0])
    live.locator("#max-tokens").fill("3")
    live.locator("#method-left").select_option("loopcd")
    live.locator("#left-amateur_loop").fill("1")
    live.locator("#left-strength").fill("0.9")
    live.locator("#run button.primary").click()
    live.wait_for_selector(".token")
    finished(live)
    heads = [live.locator(f"#head-{side} h3").inner_text() for side in ("left", "right")]
    assert "amateur loop 1, strength 0.9" in heads[0]
    assert f"amateur loop {SETTING['amateur_loop']}, strength {SETTING['strength']}" in heads[1]
    live.locator("#method-left").select_option("loopguidance")
    live.locator("#left-weight").fill("0.5")
    live.locator("#run button.primary").click()
    live.locator("#head-left h3", has_text="LoopGuidance").wait_for()
    finished(live)
    assert [each.inner_text() for each in live.locator("#head-left h3 > bdi").all()] == ["LoopGuidance"]


def test_a_text_grows_and_can_be_stopped(live: Any) -> None:
    live.locator("#run-prompt").fill(MADE[0])
    live.locator("#max-tokens").fill("200")
    live.locator("#run button.primary").click()
    live.wait_for_selector(".token")
    live.evaluate("document.getElementById('stop').click()")  # at once: a click of the mouse waits for the page to come to rest
    finished(live)
    assert live.locator("#message").inner_text() == "Stopped."
    assert 1 <= live.evaluate("lens.state.left.length") < 200
    live.locator("#max-tokens").fill("3")
    live.locator("#run button.primary").click()
    live.locator(".token[data-position='3']").first.wait_for(state="detached")
    finished(live)
    assert live.evaluate("[lens.state.left.length, lens.state.right.length]") == [3, 3]


def test_what_is_wrong_is_said_in_the_page(live: Any) -> None:
    live.locator("#run-prompt").fill("  ")
    live.locator("#run button.primary").click()
    live.locator("#message.bad").wait_for()
    assert "prompt is empty" in live.locator("#message").inner_text()
    live.locator("#run-prompt").fill(MADE[0])
    live.locator("#right-plausibility").fill("0")
    live.locator("#run button.primary").click()
    live.locator("#message.bad", has_text="plausibility").wait_for()


def test_trace_files_are_opened_and_broken_ones_named(live: Any, engine: LocalEngine, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.npz", tmp_path / "<b>bad.npz"
    with TraceWriter(good) as writer:
        for trace in paired_traces(engine, MADE[0], 6):
            writer.add(trace)
    bad.write_bytes(good.read_bytes()[:500])
    live.locator("#files").set_input_files([good])
    live.wait_for_selector(".token")
    assert live.evaluate("[lens.state.left.length, lens.state.right.length]") == [6, 6]
    live.locator("#files").set_input_files([bad])
    live.locator("#message.bad").wait_for()
    assert live.locator("#message").inner_text().startswith("<b>bad.npz: not a file of traces")


def test_a_prompt_on_the_command_line_runs_at_once(browser: Any, engine: LocalEngine) -> None:
    with (
        serving(Viewer(engine, prompt=MADE[0], settings=SETTING, max_new_tokens=4)) as address,
        open_page(browser, address) as page,
    ):
        finished(page)
        assert page.locator("#run-prompt").input_value() == MADE[0]
        assert page.evaluate("[lens.state.left.length, lens.state.right.length]") == [4, 4]


def test_a_length_of_the_command_line_can_be_run(browser: Any, engine: LocalEngine) -> None:
    with serving(Viewer(engine, max_new_tokens=700)) as address, open_page(browser, address, "#run") as page:
        assert page.locator("#max-tokens").input_value() == "700"
        assert page.evaluate("document.getElementById('max-tokens').validity.valid")


def test_traces_of_the_command_line_are_there_at_once(browser: Any, engine: LocalEngine) -> None:
    examples, _ = examples_of(trace for prompt in MADE for trace in paired_traces(engine, prompt, 5))
    with serving(Viewer(engine, examples=examples)) as address, open_page(browser, address) as page:
        assert page.locator("#place").inner_text() == "1 of 2"
        page.locator("#next").click()
        page.locator("#prompt-text", has_text=MADE[1].strip()).wait_for()
        assert page.evaluate("[lens.state.left.length, lens.state.right.length]") == [5, 5]


def test_without_a_prompt_differing_problems_are_looked_for(browser: Any, engine: LocalEngine) -> None:
    task = make_task("steps-easy", TaskOptions(limit=16, max_new_tokens=8))
    with serving(Viewer(engine, task, settings={"strength": 3})) as address, open_page(browser, address) as page:
        finished(page)
        assert page.locator("#run-prompt").input_value() == task.items[0].prompt
        assert page.locator("#note").inner_text().startswith("Chosen because the texts differ")
        count = page.locator("#example option").count()
        assert count >= 1 and page.locator("#place").inner_text() == f"1 of {count}"
        assert page.locator("#head-left").inner_text().startswith("Greedy")
