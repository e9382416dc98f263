"""What a reader sees: tables, side-by-side texts, the JSON form."""

import csv
import io
import json
from pathlib import Path

from rich.console import Console

from evaluation.fakes import fake_run
from loopcd.evaluation.partings import Parting, Piece, Side, markdown_lines, pieces, side_by_side
from loopcd.evaluation.progress import duration, time_left
from loopcd.evaluation.report import p_value, terminal
from loopcd.evaluation.runner import Progress
from loopcd.evaluation.task import Item


def test_a_small_p_is_not_zero() -> None:
    assert [p_value(value) for value in (None, 1.0, 0.0312, 0.001)] == ["–", "1.000", "0.031", "0.001"]
    assert p_value(0.0009) == p_value(0.0) == "< 0.001"


def test_the_json_form_is_the_one_of_the_design(tmp_path: Path) -> None:
    found = json.loads(json.dumps(fake_run(tmp_path / "run").results.with_speeds()))
    assert (found["task"], found["items"], list(found["methods"])) == ("steps", 23, ["greedy", "loopcd"])
    for method in found["methods"].values():
        assert {"strict", "flex", "tokens_per_second", "versus_greedy"} <= method.keys()
        assert method["strict"].keys() == method["flex"].keys() == {"accuracy", "low", "high"}
        wanted = {"difference", "low", "high", "wrong_to_right", "right_to_wrong", "mcnemar_p"}
        assert wanted <= method["versus_greedy"].keys()
        assert 0 <= method["strict"]["low"] <= method["strict"]["accuracy"] <= method["strict"]["high"] <= 1
    greedy, loopcd = (found["methods"][name] for name in ("greedy", "loopcd"))
    versus = loopcd["versus_greedy"]
    assert abs(loopcd["strict"]["accuracy"] - greedy["strict"]["accuracy"] - versus["difference"]) < 1e-12
    assert versus["wrong_to_right"] - versus["right_to_wrong"] == round(versus["difference"] * 23)


def test_without_greedy_nothing_is_compared(tmp_path: Path) -> None:
    found = fake_run(tmp_path / "run", methods="loopcd,mti").results
    assert found.as_json()["methods"]["loopcd"]["versus_greedy"] is None
    assert found.speeds()["loopcd"]["relative"] is None


def test_the_terminal_shows_table_and_texts(tmp_path: Path) -> None:
    made = fake_run(tmp_path / "run")
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(terminal(made.results))
    console.print(side_by_side(made.examples))
    shown = console.export_text()
    assert "steps, 23 items, fake" in shown and "W→R" in shown and "tok/s" in shown
    assert len(made.examples) == 3 and all(example.question[:20] in shown for example in made.examples)


def test_the_csv_has_a_line_for_each_method_and_metric(tmp_path: Path) -> None:
    made = fake_run(tmp_path / "run")
    rows = list(csv.DictReader((made.folder / "results.csv").open()))
    assert [(row["method"], row["metric"]) for row in rows] == [
        (method, metric) for method in ("greedy", "loopcd") for metric in ("strict", "flex")
    ]
    assert float(rows[2]["accuracy"]) == made.results.methods[1].shares["strict"].accuracy


def test_the_report_says_what_was_run_and_shows_examples(tmp_path: Path) -> None:
    text = fake_run(tmp_path / "run").report.read_text()
    for part in (
        "| greedy |",
        "sha256",
        "at most 112 tokens",
        "stop strings ['Question:']",
        "torch",
        "Where greedy and loopcd part",
    ):
        assert part in text


def test_without_colours_brackets_show_where_texts_part(tmp_path: Path) -> None:
    made = fake_run(tmp_path / "run")
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(side_by_side(made.examples, colours=False))
    assert console.export_text().count("⟦") >= len(made.examples)


def test_texts_are_cut_where_they_part() -> None:
    before, after = pieces("She has 4 + 3 = 7 coins.", "She has 4 * 3 = 12 coins.")
    assert [piece.text for piece in before if piece.differs] == ["+", "7"]
    assert [piece.text for piece in after if piece.differs] == ["*", "12"]
    assert "".join(piece.text for piece in after) == "She has 4 * 3 = 12 coins."


def test_texts_that_repeat_themselves_are_cut_where_they_first_part() -> None:
    """Every pair of equal words would be weighed against every other: minutes for these."""
    before, after = pieces("So 7: " + "1, " * 1300, "So 7: " + "2, 1, " * 650)
    assert before[0] == after[0] == Piece("So 7: ", False)
    assert "".join(piece.text for piece in after) == "So 7: " + "2, 1, " * 650


def test_a_terminal_is_not_sent_what_a_model_might_write() -> None:
    before, _ = pieces("\x1b[2Jgone\x07 \u202eback\u2066", "x")
    assert "".join(piece.text for piece in before) == "·[2Jgone· ·back·"


def test_nor_what_stands_in_the_data() -> None:
    side = Side("greedy", True, ())
    parting = Parting(Item("a\x1b]0;b", "", "\x1b[2J"), "who\x1b[2J?", side, side)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(side_by_side([parting]))
    for shown in (console.export_text(), "\n".join(markdown_lines(parting))):
        assert "\x1b" not in shown and "who·" in shown and "a·" in shown


def test_the_time_left_counts_only_what_this_process_made() -> None:
    assert time_left(Progress(done=60, total=100, found=40, seconds=30.0)) == "1 min 00 s left"
    assert time_left(Progress(done=40, total=100, found=40, seconds=0.0)) == ""
    assert duration(3 * 3600 + 120) == "3 h 02 min"
