"""An exported page in a real browser, opened from disk: what it shows is what the trace says."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding.slow import Slow, Text, loopcd_rule
from lens.viewing import LENGTH, MADE, SETTING, numbers, open_page, overflow, paired_traces, select
from loopcd.analysis.statistics import drop, hard_tokens, late_flips, trace_entropy
from loopcd.evaluation.engine import LocalEngine
from loopcd.lens import examples_of, export
from loopcd.tracing import LoopTrace, contrast_choices

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traces(engine: LocalEngine) -> list[LoopTrace]:
    return paired_traces(engine, MADE[0])


def shown_texts(page: Any, side: str) -> list[str]:
    return page.evaluate(f"lens.state.{side}.tokens.map((token) => token.piece)")


def test_the_answers_stand_side_by_side(page: Any, traces: list[LoopTrace]) -> None:
    for side, trace in zip(("left", "right"), traces, strict=True):
        assert page.locator(f'.token[data-side="{side}"]').count() == len(trace)
        assert shown_texts(page, side) == list(trace.pieces)
    assert page.locator("#head-left h3").inner_text().startswith("Greedy")
    assert page.locator("#head-right h3").inner_text().startswith("LoopCD")
    assert f"amateur loop {SETTING['amateur_loop']}, strength {SETTING['strength']}" in page.locator("#head-right").inner_text()


def test_differences_are_marked_joined_and_selected_first(page: Any, traces: list[LoopTrace]) -> None:
    greedy, contrasted = (trace.token_ids.tolist() for trace in traces)
    first = next(t for t in range(LENGTH) if greedy[t] != contrasted[t])  # the setting is one at which the texts differ
    selected = page.locator('.token[aria-selected="true"]')
    assert (selected.get_attribute("data-side"), selected.get_attribute("data-position")) == ("right", str(first))
    for side, ids in (("left", greedy), ("right", contrasted)):
        same = [
            ids[int(each.get_attribute("data-position"))]
            for each in page.locator(f'.token[data-side="{side}"][data-difference="0"]').all()
        ]
        differing = page.locator(f'.differs[data-side="{side}"] .token').count()
        assert len(same) + differing == LENGTH
        assert same[:first] == ids[:first]
    both = set(page.evaluate("[...document.querySelectorAll('.left .differs')].map((each) => each.dataset.difference)"))
    both &= set(page.evaluate("[...document.querySelectorAll('.right .differs')].map((each) => each.dataset.difference)"))
    assert page.locator("#joins .join").count() == len(both) >= 1
    assert page.locator("#joins .join.chosen").count() == 1


def test_charts_hold_the_numbers_of_the_trace(page: Any, traces: list[LoopTrace]) -> None:
    trace = traces[0]
    page.locator("#numbers summary").click()
    for position in (0, 3, LENGTH - 1):
        select(page, "left", position)
        loops, margins, entropies = page.evaluate("lens.chartData().map((each) => Array.from(each))")
        assert loops == list(range(1, trace.num_loops + 1))
        np.testing.assert_allclose(margins, trace.margin[position], atol=1e-6)
        np.testing.assert_allclose(entropies, trace.entropy[position], atol=1e-6)
        rows = [row.split("\t") for row in page.locator("#numbers-table tbody").inner_text().split("\n")]
        np.testing.assert_allclose([float(row[2].replace("−", "-")) for row in rows], trace.margin[position], atol=6e-4)
        np.testing.assert_allclose([float(row[3].replace("−", "-")) for row in rows], trace.entropy[position], atol=6e-4)
        np.testing.assert_allclose([float(row[4].strip("< %")) / 100 for row in rows], trace.probability[position], atol=6e-4)


def test_the_heat_map_shows_each_loops_probabilities(page: Any, traces: list[LoopTrace]) -> None:
    trace = traces[0]
    select(page, "left", 5)
    seen = 0
    for row in page.locator("#heat tbody tr").all():
        token = int(row.get_attribute("data-id"))
        for loop, cell in enumerate(row.locator("td").all()):
            text = cell.locator(".sr").text_content()
            assert ("best" in text) == (trace.top_ids[5, loop, 0] == token)
            found = np.flatnonzero(trace.top_ids[5, loop] == token)
            if len(found):
                wanted = np.exp(trace.top_logits[5, loop, found[0]] - trace.log_norm[5, loop])
                assert float(text.split(" %")[0].strip("< ")) == pytest.approx(100 * wanted, abs=0.11)
                seen += 1
    assert seen >= trace.num_loops
    assert page.locator("#heat thead th.amateur").inner_text() == str(SETTING["amateur_loop"])


def test_the_plausible_set_has_expert_amateur_and_contrast(page: Any, traces: list[LoopTrace]) -> None:
    trace = traces[0]
    position = int(trace.plausible_count.argmax())
    select(page, "left", position)
    kept = trace.plausible(position)
    logits = trace.plausible_logits[kept].astype(np.float64)
    expert = logits[:, -1] - trace.log_norm[position, -1]
    amateur = logits[:, SETTING["amateur_loop"] - 1] - trace.log_norm[position, SETTING["amateur_loop"] - 1]
    scores = expert - SETTING["strength"] * amateur
    rows = page.locator("#plausible tbody tr").all()
    assert len(rows) >= min(12, kept.stop - kept.start) > 1
    for row in rows:
        k = trace.plausible_ids[kept].tolist().index(int(row.get_attribute("data-id")))
        logs = [float(cell.get_attribute("data-log")) for cell in row.locator("td").all()]
        np.testing.assert_allclose(logs, [expert[k], amateur[k], scores[k]], atol=1e-4)
        share = float(row.locator("td").nth(2).get_attribute("data-share"))
        assert share == pytest.approx(np.exp(scores[k]) / np.exp(scores).sum(), abs=1e-5)
    winners = [page.locator(f"#plausible tbody td:nth-of-type({column}).wins").count() for column in (1, 2, 3)]
    assert winners == [1, 1, 1]
    chosen = page.locator("#plausible tbody tr", has=page.locator("td:nth-of-type(3).wins")).get_attribute("data-id")
    assert int(chosen) == contrast_choices(trace, **SETTING)[position]


def test_figures_of_the_whole_answer_are_the_papers(page: Any, traces: list[LoopTrace]) -> None:
    for side, trace in zip(("left", "right"), traces, strict=True):
        figures = page.evaluate(f"lens.state.{side}.summary()")
        assert figures["entropy"] == pytest.approx(trace_entropy(trace), abs=1e-6)
        assert figures["hard"] == pytest.approx(hard_tokens(trace).mean())
        assert figures["loops"] == pytest.approx(trace.exit_loop.mean())
        assert figures["changed"] == (contrast_choices(trace, **SETTING) != trace.winner).sum()
        np.testing.assert_allclose(numbers(page, f"lens.state.{side}.tokens.map((t) => t.drop)"), drop(trace), atol=1e-5)
        assert page.evaluate(f"lens.state.{side}.tokens.map((t) => t.lateFlip)") == late_flips(trace).tolist()
        hard = page.locator(f'.token.hard[data-side="{side}"]').evaluate_all(
            "all => all.map((e) => Number(e.dataset.position))"
        )
        assert hard == np.flatnonzero(hard_tokens(trace)).tolist()


def test_hovering_shows_a_token_and_leaving_shows_the_selected_one(page: Any) -> None:
    select(page, "left", 2)
    before = page.locator("#token-head .where").inner_text()
    page.locator('.token[data-side="right"][data-position="7"]').hover()
    assert page.locator("#token-head .where").inner_text() == f"LoopCD, token 8 of {LENGTH}"
    page.mouse.move(5, 5)
    assert page.locator("#token-head .where").inner_text() == before == f"Greedy, token 3 of {LENGTH}"
    box = page.locator("#strip").bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 4)
    assert page.locator("#token-head .where").inner_text() == f"Greedy, token 1 of {LENGTH}"


def test_the_keyboard_goes_everywhere(page: Any, traces: list[LoopTrace]) -> None:
    def place() -> tuple[str, int]:
        return page.evaluate("[lens.state.selected.side, lens.state.selected.position]")

    assert page.locator('.token[tabindex="0"]').count() == 1  # one stop among all tokens
    page.locator('.token[tabindex="0"]').focus()
    page.keyboard.press("Home")
    assert place() == ["right", 0]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert place() == ["right", 1]
    assert page.evaluate("document.activeElement.dataset.position") == "1"
    page.keyboard.press("s")
    assert place() == ["left", 1]
    page.keyboard.press("End")
    assert place() == ["left", LENGTH - 1]
    page.keyboard.press("Home")
    page.keyboard.press("n")
    greedy, contrasted = (trace.token_ids.tolist() for trace in traces)
    assert place() == ["left", next(t for t in range(LENGTH) if greedy[t] != contrasted[t])]
    page.keyboard.press("Home")
    hard = np.flatnonzero(hard_tokens(traces[0]))
    page.keyboard.press("h")
    assert place() == ["left", int(hard[hard > 0][0])]
    page.locator("#hard-only").check()
    page.locator('.token[tabindex="0"]').focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert place() == ["left", int(hard[hard > 0][0])]
    page.locator("#hard-only").uncheck()
    page.locator('.token[tabindex="0"]').focus()
    page.keyboard.press("]")
    assert page.locator("#place").inner_text() == "2 of 2"


def test_labels_speak_for_what_is_only_seen(page: Any, traces: list[LoopTrace]) -> None:
    label = page.locator('.token[data-side="left"][data-position="4"]').get_attribute("aria-label")
    assert label.startswith(f"Greedy, token 5 of {LENGTH}: ") and f"drop {drop(traces[0])[4]:.2f}" in label
    assert "highest" in page.locator("#chart").get_attribute("aria-label")
    assert f"{LENGTH} tokens" in page.locator("#strip").get_attribute("aria-label")
    unnamed = "all => all.filter((e) => !e.labels?.length && !e.getAttribute('aria-label') && !e.textContent.trim()).length"
    assert page.locator("button:visible, input:visible, select:visible").evaluate_all(unnamed) == 0


@pytest.mark.parametrize(("amateur", "strength"), [(1, 0.2), (2, 0.4), (5, 1.0), (3, 0.0)])
def test_the_sliders_foretell_what_loopcd_really_chooses(
    page: Any, engine: LocalEngine, traces: list[LoopTrace], amateur: int, strength: float
) -> None:
    page.locator("#amateur").fill(str(amateur))
    page.locator("#strength").fill(str(strength))
    slow = Slow(engine.model)
    for side, trace in zip(("left", "right"), traces, strict=True):
        foretold = dict.fromkeys(range(LENGTH))
        for button in page.locator(f'.change-list[data-side="{side}"] button').all():
            foretold[int(button.get_attribute("data-position"))] = int(button.get_attribute("data-to"))
        chosen = [trace.token_ids[t] if foretold[t] is None else foretold[t] for t in range(LENGTH)]
        prompt, rule = trace.prompt_ids.tolist(), loopcd_rule(slow, amateur, strength)
        really = [rule(Text([*prompt, *trace.token_ids[:t].tolist()], len(prompt))) for t in range(LENGTH)]
        assert sum(clear for _, clear in really) > LENGTH / 2
        assert all(own == token for own, (token, clear) in zip(chosen, really, strict=True) if clear)
        marked = page.locator(f'.token.would-change[data-side="{side}"]').evaluate_all(
            "all => all.map((e) => Number(e.dataset.position))"
        )
        assert marked == [t for t in range(LENGTH) if foretold[t] is not None]
    if strength == SETTING["strength"]:
        assert page.locator('.change-list[data-side="right"]').get_attribute("data-count") == "0"  # it is LoopCD's own text
    else:
        page.locator("#reset").click()
        assert page.evaluate("lens.state.setting") == {"amateurLoop": SETTING["amateur_loop"], "strength": SETTING["strength"]}


def test_tokens_are_coloured_by_what_is_chosen(page: Any, traces: list[LoopTrace]) -> None:
    def strongest() -> int:
        colours = page.locator('.token[data-side="left"]').evaluate_all("all => all.map((e) => e.style.backgroundColor)")
        return int(np.argmax([0 if each == "transparent" else float(each.rstrip(")").split(",")[-1]) for each in colours]))

    page.locator('input[value="entropy"]').check()
    assert strongest() == int(np.argmax(np.minimum(traces[0].entropy[:, -1], 1.5)))
    page.locator('input[value="changed"]').check()
    changed = contrast_choices(traces[0], **SETTING) != traces[0].winner
    assert changed[strongest()]
    assert "greedy" in page.locator("#legend").inner_text()


def test_help_says_what_the_words_mean(page: Any) -> None:
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    for word in ("plausible set", "contrast score", "margin", "hard token", "late flip", "trace entropy"):
        assert page.locator("#help dt", has_text=word).count() >= 1
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_all_without_scrolling_sideways(browser: Any, exported: Path, scheme: str) -> None:
    with open_page(browser, exported.as_uri(), viewport={"width": 380, "height": 800}, color_scheme=scheme) as page:
        assert overflow(page) == 0
        left, right = (page.locator(f'.token[data-side="{side}"]').first.bounding_box() for side in ("left", "right"))
        assert right["y"] > left["y"]  # one above the other
        page.locator("#numbers summary").click()
        page.locator("#open-help").click()
        assert overflow(page) == 0
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(", "))) < 384) == (scheme == "dark")


def test_the_theme_can_be_chosen(page: Any) -> None:
    grounds = []
    for _ in range(3):
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.locator("#theme").click()
    assert len(set(grounds)) == 2 and grounds[0] == grounds[1]  # the system's (light), light, dark


def test_examples_are_stepped_through_and_filtered(browser: Any, engine: LocalEngine, tmp_path: Path) -> None:
    outcomes = {"became right ": (False, True), "became wrong ": (True, False), "stayed right ": (True, True)}
    made = []
    for prompt, (before, after) in outcomes.items():
        greedy, contrasted = paired_traces(engine, prompt, 8, gold=7)
        greedy.extra["correct"], contrasted.extra["correct"] = before, after
        made += [contrasted, greedy]  # in any order
    export(tmp_path / "report.html", examples_of(made)[0])
    with open_page(browser, (tmp_path / "report.html").as_uri()) as page:
        assert page.locator("#place").inner_text() == "1 of 3"
        assert page.locator("#outcome").inner_text() == "wrong → right"
        assert "right answer 7" in page.locator("#answers").inner_text()
        assert "✗ wrong" in page.locator("#head-left").inner_text() and "✓ right" in page.locator("#head-right").inner_text()
        page.locator("#next").click()
        assert page.locator("#outcome").inner_text() == "right → wrong"
        page.locator('input[value="gained"]').check()
        assert page.locator("#outcome").inner_text() == "wrong → right" and page.locator("#place").inner_text() == "1 of 1"
        assert page.locator("#prompt-text").inner_text() == "became right"
        page.locator('input[value="all"]').check()
        page.locator("#example").select_option(index=2)
        assert page.locator("#prompt-text").inner_text() == "stayed right"
        assert page.locator("#outcome").inner_text() == "both right"
        assert "both wrong 0" in page.locator("#filters").inner_text()


def test_graded_texts_that_stand_alone_are_told_apart(browser: Any, engine: LocalEngine, tmp_path: Path) -> None:
    made = [paired_traces(engine, prompt, 8)[0] for prompt in ("this is right ", "this is wrong ")]
    for trace, correct in zip(made, (True, False), strict=True):
        trace.extra["correct"] = correct
    export(tmp_path / "report.html", examples_of(made)[0])
    with open_page(browser, (tmp_path / "report.html").as_uri()) as page:
        assert page.locator("#outcome").inner_text() == "right"
        page.locator('input[value="wrong"]').check()
        assert page.locator("#prompt-text").inner_text() == "this is wrong"
        assert page.locator("#outcome").inner_text() == "wrong" and page.locator("#place").inner_text() == "1 of 1"
        assert "both" not in page.locator("#filters").inner_text()


def test_a_single_text_is_shown_alone(browser: Any, traces: list[LoopTrace], tmp_path: Path) -> None:
    export(tmp_path / "report.html", examples_of(traces[:1])[0])
    with open_page(browser, (tmp_path / "report.html").as_uri()) as page:
        assert page.locator('.token[data-side="left"]').count() == LENGTH
        assert page.locator(".cell.right").count() == 0
        hardest = int(drop(traces[0]).argmax())
        assert page.evaluate("lens.state.selected") == {"side": "left", "position": hardest}


def test_labels_of_loops_do_not_stand_on_each_other(page: Any, traces: list[LoopTrace]) -> None:
    """The amateur's label has the place of the first or the last loop's where it would cover that."""
    loops = traces[0].num_loops
    for amateur in range(1, loops):
        page.locator("#amateur").fill(str(amateur))
        labels = [page.locator(f"#{name}") for name in ("strip-top", "strip-amateur-label", "strip-bottom")]
        boxes = [each.bounding_box() for each in labels if each.is_visible()]
        assert len(boxes) >= 1 and labels[1].is_visible()
        for above, below in pairwise(boxes):
            assert above["y"] + above["height"] <= below["y"] + 1
