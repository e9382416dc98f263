"""Texts side by side as a picture: monospaced, line by line, what differs on a coloured ground and underlined."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from loopcd.analysis.rendering.pictures import STYLES, canvas, readable, saved
from loopcd.evaluation.partings import Parting, Piece

COLUMNS = 58  # characters of a line
LINES = 40  # of an example at most
CHARACTER, LINE = 0.074, 0.155  # inches
SIZE = 8.8  # points; a monospaced character is 0.602 of that wide
Cells = list[tuple[str, bool]]  # characters of a line, and whether each differs


def draw_texts(examples: Sequence[Parting]) -> tuple[bytes, bytes]:
    """(SVG, PNG)"""
    blocks = [_block(example) for example in examples]
    rows = sum(1 + len(question) + 1 + max(len(left), len(right)) + 1 for question, left, right in blocks)
    width, height = (2 * COLUMNS + 6) * CHARACTER, rows * LINE + 0.2
    with canvas(width, height) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, 2 * COLUMNS + 6), ylim=(rows + 1, 0))
        axes.axis("off")
        at = 1.0
        for example, (question, left, right) in zip(examples, blocks, strict=True):
            at = _draw(axes, at, example, question, left, right)
        return saved(figure)


def _block(example: Parting) -> tuple[list[str], list[Cells], list[Cells]]:
    """The question's lines and both texts' lines, cut to what a page can hold."""
    question = textwrap.wrap(" ".join(example.question.split())[-600:], 2 * COLUMNS + 2)
    return question, _wrapped(example.greedy.pieces)[:LINES], _wrapped(example.other.pieces)[:LINES]


def _wrapped(pieces: Sequence[Piece]) -> list[Cells]:
    """Lines of at most so many characters, broken at blanks where there are any."""
    lines: list[Cells] = [[]]
    for character, differs in ((each, piece.differs) for piece in pieces for each in piece.text):
        if character == "\n":
            lines.append([])
            continue
        if len(lines[-1]) >= COLUMNS:
            blank = max((place for place, (each, _) in enumerate(lines[-1]) if each == " "), default=None)
            cut = COLUMNS if blank is None else blank + 1
            rest = lines[-1][cut:]
            lines[-1] = lines[-1][:cut]
            lines.append(rest)
        lines[-1].append((readable(character), differs))
    return lines


def _draw(axes: Any, at: float, example: Parting, question: list[str], left: list[Cells], right: list[Cells]) -> float:
    style = {"fontsize": SIZE, "family": "monospace", "va": "baseline", "parse_math": False}
    for number, line in enumerate([f"{example.item.id}, right answer {example.item.gold}", *question]):
        axes.text(1, at + number, readable(line), color="#555555", weight="bold" if number == 0 else "normal", **style)
    at += 1 + len(question)
    sides = (
        (1.0, example.greedy, left, STYLES["hard"][0]),
        (COLUMNS + 4.0, example.other, right, STYLES["easy"][0]),
    )
    for start, side, lines, colour in sides:
        title = f"{readable(side.method)[: COLUMNS - 8]} ({'right' if side.right else 'wrong'})"
        axes.text(start, at, title, weight="bold", **style)
        for number, line in enumerate(lines, start=1):
            _draw_line(axes, start, at + number, line, colour, style)
    end = at + 1 + max(len(left), len(right))
    axes.plot([1, 2 * COLUMNS + 5], [end, end], color="#bbbbbb", lw=0.6)
    return end + 1


def _draw_line(axes: Any, start: float, at: float, line: Cells, colour: str, style: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    for first, last in _runs(line):
        axes.add_patch(Rectangle((start + first, at - 0.78), last - first, 1.0, facecolor=(colour, 0.28), lw=0))
        axes.plot([start + first, start + last], [at + 0.2, at + 0.2], color=colour, lw=1.2, solid_capstyle="butt")
    axes.text(start, at, "".join(character for character, _ in line), **style)


def _runs(line: Cells) -> list[tuple[int, int]]:
    """Stretches that differ, as (first, one past the last)."""
    runs: list[tuple[int, int]] = []
    for place, (_, differs) in enumerate(line):
        if differs and runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        elif differs:
            runs.append((place, place + 1))
    return runs
