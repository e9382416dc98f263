"""A trajectory's measurements as tables and a picture, and the rule that picks an early checkpoint from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.effects import Effect, Setting
from loopcd.training.curves import saved

Record = dict[str, Any]

EARLY_STRENGTH = 0.2  # Ouro's preset
SHIFTED = "-shift"  # how the name of a variant ends that contradicts the regularities of another


def early_checkpoint(records: Sequence[Record], strength: float = EARLY_STRENGTH, gain: float = 0.02) -> Record | None:
    """The checkpoint that `tiny-early` is taken from, by a rule fixed before anything was measured; None if none qualifies.

    On the tuning split: LoopCD's gain on the shifted variant is at least `gain` and its interval lies above 0, and its
    interval on the ordinary mix reaches up to 0 or more, so that it costs nothing there. Of those the one with the largest
    gain; it counts only if checkpoints of at least two seeds qualify.
    """
    by_place = {(r["seed"], r["tokens"], r["variant"]): r for r in records}
    qualified = []
    for (seed, tokens, variant), record in by_place.items():
        ordinary = by_place.get((seed, tokens, variant.removesuffix(SHIFTED)))
        if variant.endswith(SHIFTED) and ordinary and _qualifies(record, ordinary, strength, gain):
            qualified.append(record)
    if len({record["seed"] for record in qualified}) < 2:
        return None
    return max(qualified, key=lambda record: _effect(record, strength)["difference"])


def _qualifies(shifted: Record, ordinary: Record, strength: float, gain: float) -> bool:
    on_shift, on_mix = _effect(shifted, strength), _effect(ordinary, strength)
    gained = on_shift["difference"] >= gain and on_shift["difference"] - on_shift["margin"] > 0
    return gained and on_mix["difference"] + on_mix["margin"] >= 0


def trajectory_section(records: Sequence[Record]) -> str:
    """The part of a model card that tells what was found along training."""
    seeds = {record["seed"] for record in records}
    places = {record["tokens"] for record in records}
    first = records[0]
    head = (
        f"## LoopCD along training\nThe recipe from scratch with {len(seeds)} seeds, {len(places)} checkpoints each, "
        f"{first['problems']:,} problems of the {first['split']} split at each; amateur at loop 1, "
        "paired 95 % intervals, in points. Each row brings the seeds together; the seeds one by one are in "
        "`trajectory.jsonl`.\n\n![along training](trajectory.png)"
    )
    variants = sorted({record["variant"] for record in records})
    tables = [f"On `{variant}`:\n\n{pooled_table(records, variant)}\n\n{finding(records, variant)}" for variant in variants]
    return "\n\n".join([head, *tables, _told_early(early_checkpoint(records), variants)])


def pooled_table(records: Sequence[Record], variant: str) -> str:
    """Markdown: a row for each checkpoint, mean accuracy by loop and LoopCD's effect by strength over all seeds."""
    chosen = _of_variant(records, variant)
    loops = list(chosen[0]["accuracy"])
    strengths = _strengths(chosen)
    heads = ["tokens", *(f"{loop} loops" for loop in loops), *(f"LoopCD {strength}" for strength in strengths)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for tokens in sorted({record["tokens"] for record in chosen}):
        here = [record for record in chosen if record["tokens"] == tokens]
        accuracy = [f"{100 * _mean([r['accuracy'][loop] for r in here]):.1f}" for loop in loops]
        pooled = [_pooled(here, strength) for strength in strengths]
        lines.append(f"| {' | '.join([f'{tokens:,}', *accuracy, *(_points(effect) for effect in pooled)])} |")
    return "\n".join(lines)


def finding(records: Sequence[Record], variant: str) -> str:
    """At each strength: the best checkpoint of all seeds together, and how often the interval of a single one excludes 0."""
    chosen = _of_variant(records, variant)
    told = []
    for strength in _strengths(chosen):
        by_place = {
            t: _pooled([r for r in chosen if r["tokens"] == t], strength) for t in sorted({r["tokens"] for r in chosen})
        }
        tokens, best = max(by_place.items(), key=lambda item: item[1]["difference"])
        single = [_effect(record, strength) for record in chosen]
        above = sum(effect["difference"] - effect["margin"] > 0 for effect in single)
        below = sum(effect["difference"] + effect["margin"] < 0 for effect in single)
        told.append(
            f"strength {strength}: at best {_points(best)} (at {tokens:,} tokens); of {len(single)} checkpoints {above} gain "
            f"and {below} lose beyond their interval"
        )
    return "; ".join(told) + "."


def _told_early(record: Record | None, variants: Sequence[str]) -> str:
    shifted = next(variant for variant in variants if variant.endswith(SHIFTED))
    rule = (
        f"The rule for an early checkpoint, fixed before these were measured: at strength {EARLY_STRENGTH} LoopCD gains at "
        f"least 2 points on `{shifted}`, its interval above 0, and does not lose on `{shifted.removesuffix(SHIFTED)}` beyond "
        "its interval, in at least two seeds. "
    )
    if record is None:
        return rule + "No two seeds have such a checkpoint, so none is kept."
    place = f"seed {record['seed']} at {record['tokens']:,} tokens"
    return rule + f"The largest gain is that of {place} ({_points(_effect(record, EARLY_STRENGTH))}): `tiny-early`."


def _of_variant(records: Sequence[Record], variant: str) -> list[Record]:
    chosen = sorted((r for r in records if r["variant"] == variant), key=lambda r: (r["seed"], r["tokens"]))
    if not chosen:
        raise ValueError(f"records hold nothing on {variant!r}")
    return chosen


def _strengths(records: Sequence[Record]) -> list[float]:
    return [effect["setting"]["strength"] for effect in records[0]["effects"]]


def _pooled(records: Sequence[Record], strength: float) -> Record:
    """One effect over the problems of several records."""
    parts = [_effect(record, strength) for record in records]
    gained, lost = (sum(part[name] for part in parts) for name in ("wrong_to_right", "right_to_wrong"))
    greedy = sum(part["greedy"] for part in parts) / len(parts)
    setting = Setting(**parts[0]["setting"])
    effect = Effect(setting, sum(part["problems"] for part in parts), greedy, gained, lost)
    return {"difference": effect.difference, "margin": effect.margin}


def _points(effect: Record) -> str:
    return f"{100 * effect['difference']:+.1f} ± {100 * effect['margin']:.1f}"


def draw_trajectory(records: Sequence[Record], picture: str | Path, strength: float = EARLY_STRENGTH) -> Path:
    """Greedy accuracy by loop, all seeds together, and LoopCD's effect at one strength by seed; a column for each variant."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing a trajectory needs matplotlib: pip install 'loopcd[plots]'") from error
    variants = sorted({record["variant"] for record in records})
    figure = Figure(figsize=(4.5 * len(variants), 5.6), layout="constrained")
    panels = figure.subplots(2, len(variants), squeeze=False, sharex=True)
    for variant, upper, lower in zip(variants, *panels, strict=True):
        chosen = _of_variant(records, variant)
        _draw_accuracy(upper, chosen)
        upper.set(title=variant, ylabel="greedy, % right", ylim=(0, 100))
        for seed in sorted({record["seed"] for record in chosen}):
            _draw_line(lower, [r for r in chosen if r["seed"] == seed], strength)
        lower.axhline(0, color="grey", linewidth=0.6)
        lower.set(xlabel="million tokens", ylabel=f"LoopCD {strength} − greedy, points")
        for panel in (upper, lower):
            panel.legend(frameon=False, fontsize="small")
    return saved(figure, Path(picture))


def _draw_accuracy(panel: Any, records: Sequence[Record]) -> None:
    """The mean over the seeds, a line for each number of loops."""
    places = sorted({record["tokens"] for record in records})
    for loop in records[0]["accuracy"]:
        means = [_mean([r["accuracy"][loop] for r in records if r["tokens"] == tokens]) for tokens in places]
        label = f"{loop} loop{'' if loop == '1' else 's'}"
        panel.plot(
            [tokens / 1e6 for tokens in places], [100 * share for share in means], marker=".", linewidth=0.8, label=label
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
