"""Pictures of panels, and of texts side by side, by matplotlib: SVG (the same bytes for the same numbers) and PNG.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines, markers and hatching differ too, for print.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from itertools import groupby
from typing import Any
from unicodedata import category, east_asian_width

from loopcd.analysis.result import Panel, Series
from loopcd.evaluation.partings import Parting, Piece

_BLUE, _ORANGE, _GREY = ("#0072B2", "o", "-", ""), ("#D55E00", "s", "--", "///"), "#999999"
STYLES: dict[str, tuple[str, str, str, str]] = {  # role: colour, marker, line, hatching
    **dict.fromkeys(("right", "easy", "number"), _BLUE),
    **dict.fromkeys(("wrong", "hard", "operator"), _ORANGE),
    "all": (_GREY, "D", ":", ""),
    "punctuation": ("#009E73", "D", "-.", "..."),
    "word": (_GREY, "^", ":", ""),
}
PAPER = "#F0E442"  # bands that the paper names
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "loopcd",
    "svg.fonttype": "none",
    "font.size": 9,
    "font.family": "sans-serif",
    "font.monospace": ["DejaVu Sans Mono", "monospace"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
}
WIDTH, HEIGHT = 4.8, 3.2  # inches of a panel
COLUMNS = 58  # characters of a line
LINES = 40  # of an example at most
CHARACTER, LINE = 0.074, 0.155  # inches
SIZE = 8.8  # points; a monospaced character is 0.602 of that wide
Cells = list[tuple[str, bool]]  # characters of a line, and whether each differs


def draw(panels: Sequence[Panel]) -> tuple[bytes, bytes]:
    """(SVG, PNG)"""
    names = [len(panel.series[0].x) for panel in panels if panel.kind == "ranking" and panel.series]
    with canvas(WIDTH * len(panels), max([HEIGHT, *(0.9 + 0.21 * each for each in names)])) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _DRAWN[panel.kind](axes, panel)
            axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
            for band in panel.bands:
                span = axes.axvspan if band.axis == "x" else axes.axhspan
                span(band.start, band.end, color=PAPER, alpha=0.35, lw=0, zorder=0, label=band.label)
            if panel.bands:  # below, where it hides nothing
                below = (0.5, -0.2 if panel.x_label else -0.1)
                axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=below)
            elif len(panel.series) > 1:
                axes.legend(frameon=False, fontsize=8)
        return saved(figure)


@contextmanager
def canvas(width: float, height: float) -> Any:
    """An empty figure under our settings; nothing global stays changed."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("the pictures need matplotlib: pip install 'loopcd[plots]'") from error
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        yield Figure(figsize=(width, height), layout="constrained")


def saved(figure: Any) -> tuple[bytes, bytes]:
    """(SVG without a date, PNG)"""
    svg, png = BytesIO(), BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


@cache
def _characters() -> frozenset[int]:
    """What the font of tokens and texts can show; it comes with matplotlib."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans Mono")).get_charmap())


def readable(text: str) -> str:
    """The text in characters of one column each; what the font lacks is a box."""
    return "".join(each if _shown(each) else "□" for each in text)


def _shown(character: str) -> bool:
    wide = east_asian_width(character) in "WF" or category(character)[0] in "CM"
    return not wide and ord(character) in _characters()


def lighter(colour: str) -> tuple[float, ...]:
    """The colour on white, without letting through what is behind it."""
    return tuple(1 - 0.6 * (1 - int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5))


def _lines(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        colour, marker, line, _ = STYLES[series.role]
        axes.plot(series.x, series.y, line, color=colour, marker=marker, ms=3.5, lw=1.5, label=series.label)
        if series.low:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, lw=0)
    _whole_loops(axes, panel)


def _steps(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        colour, _, line, hatch = STYLES[series.role]
        edges = [*series.x, series.x[-1] + (series.x[1] - series.x[0])]
        fill = {"fill": True, "facecolor": (colour, 0.25), "hatch": hatch}
        axes.stairs(series.y, edges, **fill, edgecolor=colour, lw=1.3, ls=line, label=series.label)
    axes.set_ylim(bottom=0)


def _bars(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        axes.bar(series.x, series.y, 0.6, **_fill(series), yerr=_errors(series), capsize=4)
    axes.set_xticks([series.x[0] for series in panel.series], [series.label for series in panel.series])
    _shares(axes)


def _groups(axes: Any, panel: Panel) -> None:
    width = 0.8 / max(1, len(panel.series))
    for number, series in enumerate(panel.series):
        places = [x + (number - (len(panel.series) - 1) / 2) * width for x in series.x]
        thin = {"lw": 0.8, "error_kw": {"lw": 0.8}}
        axes.bar(places, series.y, width * 0.95, **_fill(series), **thin, yerr=_errors(series), label=series.label)
    _shares(axes)
    _whole_loops(axes, panel)


def _ranking(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        places = [place for place, y in enumerate(series.y) if y > 0]
        axes.barh(places, [series.y[place] for place in places], 0.75, **_fill(series), label=series.label)
    names = panel.series[0].x if panel.series else ()
    axes.set_yticks(range(len(names)), [readable(str(name)) for name in names], parse_math=False, family="monospace")
    axes.invert_yaxis()
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False, axis="y")


_DRAWN = {"lines": _lines, "steps": _steps, "bars": _bars, "groups": _groups, "ranking": _ranking}


def _fill(series: Series) -> dict[str, Any]:
    colour, _, _, hatch = STYLES[series.role]
    return {"color": lighter(colour), "edgecolor": colour, "hatch": hatch}


def _shares(axes: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def _errors(series: Series) -> Any:
    """Distances below and above; an interval may lie wholly on one side of its figure."""
    if not series.low:
        return None
    below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
    return [below, [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]]


def _whole_loops(axes: Any, panel: Panel) -> None:
    loops = sorted({int(x) for series in panel.series for x in series.x})
    step = max(1, -(-len(loops) // 16))
    axes.set_xticks(loops[step - 1 :: step] if step > 1 else loops)


# -- texts side by side: monospaced, line by line, what differs on a coloured ground and underlined


def draw_texts(examples: Sequence[Parting]) -> tuple[bytes, bytes]:
    """(SVG, PNG)"""
    blocks = [_block(example) for example in examples]
    rows = sum(1 + len(question) + 1 + max(map(len, sides)) + 1 for question, sides in blocks)
    width, height = (2 * COLUMNS + 6) * CHARACTER, rows * LINE + 0.2
    with canvas(width, height) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, 2 * COLUMNS + 6), ylim=(rows + 1, 0))
        axes.axis("off")
        at = 1.0
        for example, (question, sides) in zip(examples, blocks, strict=True):
            at = _draw(axes, at, example, question, sides)
        return saved(figure)


def _block(example: Parting) -> tuple[list[str], list[list[Cells]]]:
    """The question's lines and both texts' lines, cut to what a page can hold."""
    question = textwrap.wrap(" ".join(example.question.split())[-600:], 2 * COLUMNS + 2)
    return question, [_wrapped(side.pieces)[:LINES] for side in example.sides]


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
            lines[-1:] = [lines[-1][:cut], lines[-1][cut:]]
        lines[-1].append((readable(character), differs))
    return lines


def _draw(axes: Any, at: float, example: Parting, question: list[str], sides: list[list[Cells]]) -> float:
    style = {"fontsize": SIZE, "family": "monospace", "va": "baseline", "parse_math": False}
    for number, line in enumerate([f"{example.item.id}, right answer {example.item.gold}", *question]):
        axes.text(1, at + number, readable(line), color="#555555", weight="bold" if number == 0 else "normal", **style)
    at += 1 + len(question)
    starts, roles = (1.0, COLUMNS + 4.0), ("hard", "easy")
    for start, side, lines, role in zip(starts, example.sides, sides, roles, strict=True):
        title = f"{readable(side.method)[: COLUMNS - 8]} ({'right' if side.right else 'wrong'})"
        axes.text(start, at, title, weight="bold", **style)
        for number, line in enumerate(lines, start=1):
            _draw_line(axes, start, at + number, line, STYLES[role][0], style)
    end = at + 1 + max(map(len, sides))
    axes.plot([1, 2 * COLUMNS + 5], [end, end], color="#bbbbbb", lw=0.6)
    return end + 1


def _draw_line(axes: Any, start: float, at: float, line: Cells, colour: str, style: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    first = start
    for differs, run in groupby(differs for _, differs in line):
        last = first + len(list(run))
        if differs:
            axes.add_patch(Rectangle((first, at - 0.78), last - first, 1.0, facecolor=(colour, 0.28), lw=0))
            axes.plot([first, last], [at + 0.2, at + 0.2], color=colour, lw=1.2, solid_capstyle="butt")
        first = last
    axes.text(start, at, "".join(character for character, _ in line), **style)
