"""A trajectory's measurements as a table and a picture, and the rule that picks an early checkpoint from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def early_checkpoint(records: Sequence[Record], strength: float, gain: float = 0.02) -> Record | None:
    """The checkpoint that `tiny-early` is taken from, by a rule fixed before anything was measured; None if none qualifies.

    On the tuning split: LoopCD's gain on `steps-shift` is at least `gain` and its interval lies above 0, and its interval
    on `steps` reaches up to 0 or more, so that it costs nothing on the ordinary mix. Of those the one with the largest
    gain; it counts only if checkpoints of at least two seeds qualify.
    """
    by_place = {(r["seed"], r["tokens"], r["variant"]): r for r in records}
    qualified = []
    for (seed, tokens, variant), record in by_place.items():
        ordinary = by_place.get((seed, tokens, "steps"))
        if variant == "steps-shift" and ordinary and _qualifies(record, ordinary, strength, gain):
            qualified.append(record)
    if len({record["seed"] for record in qualified}) < 2:
        return None
    return max(qualified, key=lambda record: _effect(record, strength)["difference"])


def _qualifies(shifted: Record, ordinary: Record, strength: float, gain: float) -> bool:
    on_shift, on_mix = _effect(shifted, strength), _effect(ordinary, strength)
    gained = on_shift["difference"] >= gain and on_shift["difference"] - on_shift["margin"] > 0
    return gained and on_mix["difference"] + on_mix["margin"] >= 0


def trajectory_table(records: Sequence[Record], variant: str) -> str:
    """Markdown: a row for each seed and checkpoint, accuracy by loop and LoopCD's effect by strength."""
    chosen = sorted((r for r in records if r["variant"] == variant), key=lambda r: (r["seed"], r["tokens"]))
    if not chosen:
        raise ValueError(f"records hold nothing on {variant!r}")
    loops = list(chosen[0]["accuracy"])
    strengths = [effect["setting"]["strength"] for effect in chosen[0]["effects"]]
    heads = ["seed", "tokens", *(f"{loop} loops" for loop in loops), *(f"LoopCD {strength}" for strength in strengths)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for record in chosen:
        accuracy = [f"{100 * record['accuracy'][loop]:.1f}" for loop in loops]
        effects = [f"{100 * e['difference']:+.1f} ± {100 * e['margin']:.1f}" for e in record["effects"]]
        place = [f"{record['seed']}", f"{record['tokens']:,}"]
        lines.append(f"| {' | '.join([*place, *accuracy, *effects])} |")
    return "\n".join(lines)


def draw_trajectory(records: Sequence[Record], strength: float, picture: str | Path) -> Path:
    """LoopCD's effect at one strength against tokens, a line for each seed, a panel for each variant."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing a trajectory needs matplotlib: pip install 'loopcd[plots]'") from error
    variants = sorted({record["variant"] for record in records})
    figure = Figure(figsize=(4.5 * len(variants), 3.2), layout="constrained")
    for panel, variant in zip(figure.subplots(1, len(variants), squeeze=False)[0], variants, strict=True):
        for seed in sorted({record["seed"] for record in records}):
            _draw_line(panel, [r for r in records if r["variant"] == variant and r["seed"] == seed], strength)
        panel.axhline(0, color="grey", linewidth=0.6)
        panel.set(title=variant, xlabel="million tokens", ylabel=f"LoopCD {strength} − greedy, points", xscale="log")
        panel.legend(frameon=False)
    target = Path(picture)
    figure.savefig(target, dpi=110)
    return target


def _draw_line(panel: Any, records: Sequence[Record], strength: float) -> None:
    ordered = sorted(records, key=lambda record: record["tokens"])
    effects = [_effect(record, strength) for record in ordered]
    panel.errorbar(
        [record["tokens"] / 1e6 for record in ordered],
        [100 * effect["difference"] for effect in effects],
        yerr=[100 * effect["margin"] for effect in effects],
        marker=".",
        capsize=2,
        linewidth=0.8,
        label=f"seed {ordered[0]['seed']}" if ordered else None,
    )


def _effect(record: Record, strength: float) -> Record:
    for effect in record["effects"]:
        if effect["setting"]["strength"] == strength:
            return effect
    raise ValueError(f"strength {strength} was not measured")
