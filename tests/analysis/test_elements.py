"""The elements' figures against slow readings, and what they say where there is nothing to count."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.labs import coin_task, laboratory
from analysis.readings import answers_read, hard, late_alternative, margins
from loopcd.analysis.elements import ELEMENTS, comparison, elements
from loopcd.analysis.elements.changed_texts import first_difference
from loopcd.analysis.elements.comparison import chosen, grids
from loopcd.analysis.elements.tokens import token_class, visible
from loopcd.analysis.elements.variants import PLACES, place_shares
from loopcd.analysis.laboratory import GREEDY, Laboratory
from loopcd.analysis.result import Result
from loopcd.decoding.selective import kind_numeric
from loopcd.evaluation import paper
from loopcd.evaluation.plan import MethodSpec
from loopcd.evaluation.table import Cell, Estimate, Table
from loopcd.models.presets import PUBLIC, Preset

TRACED = ("fig2a", "fig2bc", "table1", "fig3", "fig4", "table6", "fig5", "table7", "table8")


def column(result: Result, key: str) -> list[Cell]:
    place = [each.key for each in result.table.columns].index(key)
    return [row[place] for row in result.table.rows]


def values(result: Result, key: str) -> list[float | None]:
    return [cell.value if isinstance(cell, Estimate) else cell for cell in column(result, key)]  # type: ignore[misc]


def test_every_row_of_the_papers_list_is_there() -> None:
    wanted = "fig2a fig2bc table1 table2 table3 table4 fig3 table5 fig4 table6 fig5 table7 table8 table9 table10 fig6 app"
    assert [name for name in ELEMENTS if name in wanted.split()] == wanted.split()
    assert list(elements("all")) == list(ELEMENTS)


@pytest.mark.parametrize("wanted", ["table11", "", "table1,,fig3", "table1,table1"])
def test_what_is_no_element_is_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"there is no element|twice"):
        elements(wanted)


def test_trace_entropy_of_right_and_wrong_answers(lab: Laboratory) -> None:
    found = ELEMENTS["fig2a"].compute(lab)
    right = lab.answers(GREEDY)[0].right("flex")
    entropies = []
    for logits in answers_read(lab):
        log_p = logits[:, -1].log_softmax(dim=-1)
        entropies.append(float(-(log_p.exp() * log_p).sum(dim=-1).mean()))
    groups = [[each for each, good in zip(entropies, right, strict=True) if good == wanted] for wanted in (True, False)]
    assert values(found, "mean")[:2] == pytest.approx([np.mean(group) for group in groups], abs=1e-4)
    assert values(found, "count")[:2] == [len(group) for group in groups]
    for series in found.panels[0].series:
        assert sum(series.y) == pytest.approx(1)


def test_few_answers_decide_nothing_and_have_no_interval_in_pictures(lab: Laboratory) -> None:
    entropies, shares = (ELEMENTS[name].compute(lab) for name in ("fig2a", "fig4"))
    assert values(entropies, "count")[1] == 2  # wrong answers
    assert entropies.finding.verdict == shares.finding.verdict == "is undecided"
    more, wrong = column(entropies, "mean")[2], column(shares, "hard")[1]
    assert isinstance(more, Estimate) and more.low is None and isinstance(wrong, Estimate) and wrong.low is None
    assert shares.panels[0].series[1].low == shares.panels[0].series[1].high == (wrong.value,)


def test_margins_by_loop_of_easy_and_hard_tokens(each_lab: Laboratory) -> None:
    read = answers_read(each_lab)
    masks, all_margins = (
        torch.tensor([each for logits in read for each in hard(logits)]),
        torch.cat([margins(each) for each in read]),
    )
    found = ELEMENTS["fig2bc"].compute(each_lab)
    assert values(found, "margin_hard") == pytest.approx(all_margins[masks].mean(dim=0).tolist(), abs=1e-3)
    assert values(found, "margin_easy") == pytest.approx(all_margins[~masks].mean(dim=0).tolist(), abs=1e-3)


def test_margin_flips_are_what_the_bare_contrast_changes(lab: Laboratory) -> None:
    flips = {True: [0, 0], False: [0, 0]}
    for logits in answers_read(lab):
        for each, is_hard in zip(logits, hard(logits), strict=True):
            contrast = each[-1] - lab.strength * each[lab.amateur - 1]
            flips[is_hard][0] += int(contrast.argmax() != each[-1].argmax())
            flips[is_hard][1] += 1
    found = ELEMENTS["table6"].compute(lab)
    assert values(found, "flipped") == pytest.approx([flips[False][0] / flips[False][1], flips[True][0] / flips[True][1]])
    assert values(found, "count") == [flips[False][1], flips[True][1]]


def test_hard_tokens_in_right_and_wrong_answers_and_their_peaks(lab: Laboratory) -> None:
    read, right = answers_read(lab), lab.answers(GREEDY)[0].right("flex")
    masks = [hard(logits) for logits in read]
    shares = []
    for wanted in (True, False):
        chosen = [mask for mask, good in zip(masks, right, strict=True) if good == wanted]
        shares.append(sum(map(sum, chosen)) / sum(map(len, chosen)))
    assert values(ELEMENTS["fig4"].compute(lab), "hard")[:2] == pytest.approx(shares)
    peaks = [int(row.argmax()) + 1 for logits in read for row in margins(logits)]
    wanted_shares = [peaks.count(loop) / len(peaks) for loop in range(1, lab.loops + 1)]
    assert values(ELEMENTS["fig5"].compute(lab), "all") == pytest.approx(wanted_shares)


def test_late_flips_and_early_overconfidence(lab: Laboratory) -> None:
    read, right = answers_read(lab), lab.answers(GREEDY)[0].right("flex")
    counts = {True: [0, 0, 0], False: [0, 0, 0]}  # early overconfident, Late-Flip, tokens
    for logits, good in zip(read, right, strict=True):
        for each, is_hard in zip(logits, hard(logits), strict=True):
            late = late_alternative(each) is not None
            counts[good][0] += is_hard and not late
            counts[good][1] += late
            counts[good][2] += 1
    found = ELEMENTS["table7"].compute(lab)
    for key, good in (("right", True), ("wrong", False)):
        early, late, tokens = counts[good]
        assert values(found, key) == pytest.approx([early / tokens, late / tokens])


def test_kinds_of_positions_add_up(lab: Laboratory) -> None:
    shares = {place: each.value for place, each in place_shares(lab).items() if each is not None}
    assert set(shares) == {"greedy", "all", *PLACES}
    assert shares["hard"] + shares["easy"] == pytest.approx(1)
    tokenizer, numeric = lab.engine.tokenizer, []
    for logits in answers_read(lab):
        numeric += [kind_numeric(tokenizer.decode([int(each[-1].argmax())])) for each in logits]
    assert shares["hard numeric"] + shares["easy numeric"] == pytest.approx(sum(numeric) / len(numeric))


def test_the_sweep_has_a_row_for_each_amateur_and_says_the_scaling(each_lab: Laboratory) -> None:
    found = ELEMENTS["table4"].compute(each_lab)
    assert found.table.rows[0][-2:] == (0.3321, 0.2439)  # greedy's, of Table 2
    assert values(found, "amateur") == ["none (greedy)", 1, 2, 3]
    assert any("of 4 loops every one" in note for note in found.notes)


def test_early_exit_with_loopcd_leaves_after_the_amateur(each_lab: Laboratory) -> None:
    found = ELEMENTS["table3"].compute(each_lab)
    loops = values(found, "loops_per_token")
    assert loops[0] == loops[1] == each_lab.loops and all(1 <= each <= each_lab.loops for each in loops if each is not None)
    assert values(found, "paper_speed") == [1.0, 0.98, 1.98, 1.94]


def test_methods_are_compared_with_greedy_on_the_same_items(lab: Laboratory) -> None:
    found = ELEMENTS["table2"].compute(lab)
    greedy, contrasted = (lab.answers(spec)[0].right("flex") for spec in (GREEDY, lab.loopcd()))
    last = dict(zip(column(found, "method"), found.table.rows, strict=True))["LoopCD"]
    difference = last[[each.key for each in found.table.columns].index("difference")]
    assert isinstance(difference, Estimate)
    assert difference.value == pytest.approx((sum(contrasted) - sum(greedy)) / len(greedy))
    assert any("Self-Eval cannot run" in note for note in found.notes)  # the byte tokenizer has no label of one token


def test_settings_are_chosen_on_half_as_many_other_items(folders: dict[str, Path], tmp_path: Path) -> None:
    lab = replace(laboratory(folders["ouro"], tmp_path, limit=8, max_new_tokens=5), tuned=True)
    tuning = lab.task(split="tuning")
    assert len(tuning.items) == 4 and {item.id for item in tuning.items}.isdisjoint(item.id for item in lab.task().items)
    lab._tasks["steps", "tuning"] = coin_task(lab.session, "tuning")
    lab._tasks["steps", "report"] = lab.task()
    settings = chosen(lab)
    for name, specs in grids(lab).items():
        right = [sum(lab.answers(spec, split="tuning")[0].right("flex")) for spec in specs]
        assert settings[name] == specs[right.index(max(right))]
    found = ELEMENTS["table2"].compute(lab)
    assert [cell for cell in column(found, "setting") if cell != "–"] == [
        settings[name].label.partition(":")[2] for name in settings if settings[name].given
    ]
    assert "tuning items" in found.notes[0]


def test_table_2_takes_the_papers_own_settings_for_its_models(each_lab: Laboratory, tmp_path: Path) -> None:
    """Known by the configuration; the answers would need the weights."""
    PUBLIC["tomg-group-umd/huginn-0125"]().save_pretrained(tmp_path)
    theirs = replace(each_lab, session=replace(each_lab.session, model=str(tmp_path), task="gsm8k"), tuned=None)
    assert theirs.published == Preset(6, 0.3) and not theirs.tunes
    assert [spec.label for spec in grids(theirs)["loopcd"]] == ["loopcd:amateur_loop=6,strength=0.3"]
    assert grids(theirs)["loopguidance"] == [MethodSpec("loopguidance")]
    for other in (replace(theirs, tuned=True), replace(theirs, session=replace(theirs.session, task="steps"))):
        assert other.published is None and other.tunes and len(grids(other)["loopcd"]) > 1
    assert not replace(theirs, tuned=False).tunes and theirs.loopcd().label != "loopcd:amateur_loop=6,strength=0.3"


def test_loopguidance_is_a_row_beyond_the_papers(lab: Laboratory) -> None:
    found = ELEMENTS["table2"].compute(lab)
    row = dict(zip(column(found, "method"), found.table.rows, strict=True))["LoopGuidance"]
    keys = [each.key for each in found.table.columns]
    assert row[keys.index("huginn_flex")] is row[keys.index("ouro_speed")] is None
    assert isinstance(row[keys.index("flex")], Estimate) and any("2610.02185" in note for note in found.notes)


def test_seeds_draw_the_state_or_else_the_tokens(each_lab: Laboratory) -> None:
    found = ELEMENTS["table10"].compute(each_lab)
    assert len(found.table.rows) == 2 and found.settings["seeds"] == [0, 1, 2, 3]
    drawn = "initial state, as in the paper" if each_lab.engine.model.has_initial_state else "temperature"
    assert drawn in found.notes[0]
    means = [np.mean([row[place] for place in range(1, 5)]) for row in found.table.rows]  # type: ignore[call-overload]
    assert values(found, "mean") == pytest.approx(means)


def test_the_papers_figures_stand_beside_ours() -> None:
    assert paper.main("huginn", "loopcd", "gsm8k", "strict") == 26.46
    assert paper.main("ouro", "selfeval", "mbpp", "plus") == 58.73
    assert paper.main("huginn", "greedy", "steps-hard", "flex") == paper.main("huginn", "greedy", "gsm8k", "flex") == 33.21
    assert paper.fixed("ouro", "strategyqa", "accuracy") == (64.00, 64.67)
    assert paper.seeds("loopcd", "humaneval", "plus") == (27.59, 1.46)
    assert paper.seeds("loopcd", "math500", "strict") is None
    assert paper.speed("huginn", "selfeval") == 0.28


def test_where_nothing_is_hard_the_claims_are_undecided(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopcd.analysis.statistics.HARD_DROP", 1e9)
    monkeypatch.setattr("loopcd.analysis.statistics.hard_tokens", lambda trace, threshold=1e9: np.zeros(len(trace), bool))
    for name in ("fig2bc", "table1", "fig3", "table6", "fig5"):
        found = ELEMENTS[name].compute(lab)
        assert found.finding.verdict == "is undecided", name
        assert "nan" not in found.finding.sentence


def test_tokens_by_class_and_where_texts_part() -> None:
    assert [token_class(text) for text in ("12", "=", "\n", "<|end|>", "The", "####", "3rd")] == [
        *("number", "operator", "punctuation", "punctuation", "word", "punctuation", "word"),
    ]
    assert [token_class(text) for text in ("-5", "3.14", "$", " x", "1,000")] == [
        *("number", "number", "operator", "operator", "word"),
    ]
    assert visible("\n") == "\\n" and visible("a\nb") == "a⏎b"
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2], [1, 2, 3]) == 2 and first_difference([4, 2], [1, 2]) == 0


def test_a_row_that_does_not_fit_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells, but the table has 0 columns"):
        Table((), (("a",),))


@pytest.mark.parametrize("allowed", [False, True])
def test_benchmarks_that_are_left_out_are_named(folders: dict[str, Path], tmp_path: Path, allowed: bool) -> None:
    lab = laboratory(folders["ouro"], tmp_path, limit=2)
    task = coin_task(lab.session)
    lab.session = replace(lab.session, task="gsm8k", allow_code_execution=allowed)
    lab._tasks |= {(name, "test"): replace(task, name=name) for name in paper.SHOWN}
    said = "humaneval and mbpp are left out: they run programs, which --allow-code-execution allows."
    assert (said in ELEMENTS["table9"].compute(lab).notes) is not allowed


def test_speeds_of_one_batch_have_no_spread_and_decide_nothing() -> None:
    one = comparison._relative({("greedy", 0): 2.0, ("loopcd", 0): 1.0}, "loopcd", Path())
    assert (one.value, one.low, one.high, one.above(0.4)) == (0.5, None, None, "is undecided")
    two = comparison._relative(
        {("greedy", 0): 2.0, ("loopcd", 0): 1.0, ("greedy", 1): 1.0, ("loopcd", 1): 1.0}, "loopcd", Path()
    )
    assert (two.value, two.low, two.high) == (0.75, 0.5, 1.0)
