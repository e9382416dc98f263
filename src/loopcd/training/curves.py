"""The curves of a run as a picture: loss, and accuracy by loop on the tuning split, against tokens."""

from pathlib import Path
from typing import Any

from loopcd.tracing.writing import replacing
from loopcd.training.checkpoints import RunFolder


def draw_curves(run: str | Path, picture: str | Path) -> Path:
    """Draw the log of the run folder `run` into the file `picture` (its ending says the format)."""
    log = RunFolder(Path(run)).read_log()
    if not log:
        raise ValueError(f"run {run} holds no log to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing curves needs matplotlib: pip install 'loopcd[plots]'") from error
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    losses = [record for record in log if "loss" in record]
    left.plot([record["tokens"] / 1e6 for record in losses], [record["loss"] for record in losses], linewidth=0.8)
    left.set(xlabel="million tokens", ylabel="training loss", yscale="log")
    measured = [record for record in log if "accuracy" in record]
    for loop in sorted({int(loop) for record in measured for loop in record["accuracy"]}):
        points = [(record["tokens"] / 1e6, 100 * record["accuracy"][str(loop)]) for record in measured]
        right.plot(*zip(*points, strict=True), marker=".", label=f"{loop} loop{'s' if loop > 1 else ''}")
    right.set(xlabel="million tokens", ylabel="right answers, %")
    if measured:
        right.legend(frameon=False, title=f"tuning split, {measured[-1]['problems']} problems")
    return saved(figure, Path(picture))


def saved(figure: Any, target: Path) -> Path:
    with replacing(target) as file:
        figure.savefig(file, format=target.suffix.removeprefix(".") or "png", dpi=110)
    return target
