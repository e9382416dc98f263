"""The picture of docs/performance.md: methods, decoding against its limit, and what drafting may bring on a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.paper import Outlook
from loopcd.tracing.writing import replacing

SHOWN = ("loopcd", "greedy+draft", "loopcd+draft", "exit+loopcd", "noisecd", "mti", "selfeval")
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#7d5ba6", "#8d8d8d")


def draw(run: Mapping[str, Any], views: Mapping[str, Outlook], path: Path) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("the report's plot needs matplotlib: pip install 'loopcd[plots]'") from error
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "loopcd", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
        _methods(left, run.get("ratios", {}))
        _decoding(middle, run.get("decode"), run.get("reference") or {})
        _outlook(right, views)
        with replacing(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


def _methods(axes: Any, ratios: Mapping[str, Any]) -> None:
    series = [(model, batch) for model, batches in ratios.items() for batch in batches]
    names = [name for name in SHOWN if any(f"{name}/greedy" in ratios[model][batch] for model, batch in series)]
    height = 0.8 / max(1, len(series))
    for index, (model, batch) in enumerate(series):
        present = [(at, ratios[model][batch].get(f"{name}/greedy")) for at, name in enumerate(names)]
        present = [(at, told) for at, told in present if told is not None]
        places = [at + index * height for at, _ in present]
        medians = [told["median"] for _, told in present]
        spans = [[max(0.0, told["median"] - told["low"]) for _, told in present]]
        spans += [[max(0.0, told["high"] - told["median"]) for _, told in present]]
        label, colour = f"{model}, batch {batch}", COLOURS[index % len(COLOURS)]
        axes.barh(places, medians, height * 0.9, xerr=spans, label=label, color=colour, error_kw={"lw": 0.8})
    axes.axvline(1, color="black", lw=0.8)
    axes.set_yticks([at + 0.4 - height / 2 for at in range(len(names))], names)
    axes.invert_yaxis()
    axes.set(title="Tokens per second over greedy")
    if series:
        axes.legend(fontsize=7, loc="lower right")


def _decoding(axes: Any, decode: Mapping[str, Any] | None, reference: Mapping[str, Any]) -> None:
    for index, (name, told) in enumerate((decode or {"models": {}})["models"].items()):
        cells = [cell for cell in told["cells"] if cell["batch"] == 1]
        contexts, colour = [cell["context"] for cell in cells], COLOURS[index % len(COLOURS)]
        axes.plot(contexts, [c["tokens_per_cpu_second"]["median"] for c in cells], "o-", color=colour, label=name)
        axes.plot(contexts, [c["limit"] for c in cells], ":", color=colour, label=f"{name}: limit")
        beside = reference.get(name, {})
        speeds = [told["tokens_per_cpu_second"]["reference"]["median"] for told in beside.values()]
        axes.plot([int(context) for context in beside], speeds, "x", color=colour, label=f"{name}: the public code")
    axes.set(title="Decoding, batch 1, one thread", xlabel="context", ylabel="tokens per CPU second", xscale="log")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.4)  # room for the names above the lines
    axes.minorticks_off()
    axes.set_xticks((decode or {}).get("contexts", []), map(str, (decode or {}).get("contexts", [])))
    if axes.lines:
        axes.legend(fontsize=7)


def _outlook(axes: Any, views: Mapping[str, Outlook]) -> None:
    for colour, (name, view) in zip(COLOURS, views.items(), strict=False):
        for style, (loops, each) in zip(("-", "--", ":"), view.by_loops().items(), strict=False):
            label = f"{name}, {loops} of {view.traffic.loops} loops draft"
            axes.plot([x.acceptance for x in each], [x.gain for x in each], f"o{style}", ms=3, color=colour, label=label)
    axes.axhline(1, color="black", lw=0.8)
    axes.set(title="On paper: drafting on a GPU", xlabel="acceptance", ylabel="speed over plain decoding")
    axes.legend(fontsize=7)
