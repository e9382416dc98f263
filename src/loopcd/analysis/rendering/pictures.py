"""Pictures of panels, and of texts side by side, by matplotlib: SVG (the same bytes for the same numbers) and PNG.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines, markers and hatching differ too, for print.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import Any
from unicodedata import category, east_asian_width

from loopcd.analysis.result import Panel, Series
from loopcd.evaluation.partings import Parting, Piece

# role: colour, marker, line, hatching
STYLES: dict[str, tuple[str, str, str, str]] = {
    "right": ("#0072B2", "o", "-", ""),
    "wrong": ("#D55E00", "s", "--", "///"),
    "easy": ("#0072B2", "o", "-", ""),
    "hard": ("#D55E00", "s", "--", "///"),
    "all": ("#999999", "D", ":", ""),
    "number": ("#0072B2", "o", "-", ""),
    "operator": ("#D55E00", "s", "--", "///"),
    "punctuation": ("#009E73", "D", "-.", "..."),
    "word": ("#999999", "^", ":", ""),
    "other": ("#CC79A7", "v", "-", ""),
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
    tall = max(_height(panel) for panel in panels)
    with canvas(WIDTH * len(panels), tall) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _DRAWN[panel.kind](axes, panel)
            axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
            _bands(axes, panel)
            if panel.bands:  # below, where it hides nothing
                axes.legend(
                    frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2 if panel.x_label else -0.1)
                )
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
    return "".join("□" if _wide(each) or ord(each) not in _characters() else each for each in text)


def _wide(character: str) -> bool:
    return east_asian_width(character) in "WF" or category(character)[0] in "CM"


def _height(panel: Panel) -> float:
    return max(HEIGHT, 0.9 + 0.21 * len(panel.series[0].x)) if panel.kind == "ranking" and panel.series else HEIGHT


def _style(series: Series) -> tuple[str, str, str, str]:
    return STYLES.get(series.role, STYLES["other"])


def lighter(colour: str, share: float = 0.6) -> tuple[float, float, float]:
    """The colour on white, without letting through what is behind it."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return 1 - share * (1 - red), 1 - share * (1 - green), 1 - share * (1 - blue)


def _lines(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        colour, marker, line, _ = _style(series)
        axes.plot(series.x, series.y, line, color=colour, marker=marker, ms=3.5, lw=1.5, label=series.label)
        if series.low:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, lw=0)
    _whole_loops(axes, panel)


def _steps(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        colour, _, line, hatch = _style(series)
        edges = [float(x) for x in series.x]
        width = edges[1] - edges[0] if len(edges) > 1 else 1.0
        axes.stairs(
            series.y,
            [*edges, edges[-1] + width],
            fill=True,
            facecolor=(colour, 0.25),
            edgecolor=colour,
            lw=1.3,
            ls=line,
            hatch=hatch,
            label=series.label,
        )
    axes.set_ylim(bottom=0)


def _bars(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        colour, _, _, hatch = _style(series)
        axes.bar(series.x, series.y, 0.6, color=lighter(colour), edgecolor=colour, hatch=hatch, yerr=_errors(series), capsize=4)
    places = [float(series.x[0]) for series in panel.series]
    axes.set_xticks(places, [series.label for series in panel.series])
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(_percent())


def _groups(axes: Any, panel: Panel) -> None:
    width = 0.8 / max(1, len(panel.series))
    for number, series in enumerate(panel.series):
        colour, _, _, hatch = _style(series)
        places = [float(x) + (number - (len(panel.series) - 1) / 2) * width for x in series.x]
        axes.bar(
            places,
            series.y,
            width * 0.95,
            color=lighter(colour),
            edgecolor=colour,
            lw=0.8,
            hatch=hatch,
            yerr=_errors(series),
            error_kw={"lw": 0.8},
            label=series.label,
        )
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(_percent())
    _whole_loops(axes, panel)


def _ranking(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        colour, _, _, hatch = _style(series)
        places = [place for place, y in enumerate(series.y) if y > 0]
        counts = [series.y[place] for place in places]
        axes.barh(places, counts, 0.75, color=lighter(colour), edgecolor=colour, hatch=hatch, label=series.label)
    names = panel.series[0].x if panel.series else ()
    axes.set_yticks(range(len(names)), [readable(str(name)) for name in names], parse_math=False, family="monospace")
    axes.invert_yaxis()
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False, axis="y")


_DRAWN = {"lines": _lines, "steps": _steps, "bars": _bars, "groups": _groups, "ranking": _ranking}


def _errors(series: Series) -> Any:
    """Distances below and above; an interval may lie wholly on one side of its figure."""
    if not series.low:
        return None
    below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
    return [below, [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]]


def _bands(axes: Any, panel: Panel) -> None:
    for band in panel.bands:
        span = axes.axvspan if band.axis == "x" else axes.axhspan
        span(band.start, band.end, color=PAPER, alpha=0.35, lw=0, zorder=0, label=band.label)


def _whole_loops(axes: Any, panel: Panel) -> None:
    loops = sorted({int(x) for series in panel.series for x in series.x})
    step = max(1, -(-len(loops) // 16))
    axes.set_xticks(loops[step - 1 :: step] if step > 1 else loops)


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(xmax=1)


# -- texts side by side: monospaced, line by line, what differs on a coloured ground and underlined


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
