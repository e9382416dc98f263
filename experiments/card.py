"""The model card: README.md beside the weights, written from the run's record and the measured figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.trajectory import FILE, read_trajectory
from experiments.trajectory_report import draw_trajectory, early_checkpoint, trajectory_section
from loopcd.evaluation.statistics import wilson
from loopcd.evaluation.tasks.steps import VARIANTS, related
from loopcd.tracing import writing
from loopcd.training.checkpoints import RunFolder, read_record
from loopcd.training.curves import draw_curves

WHAT_MISLEADS = {
    "steps": "`steps-hard` lies outside of the training mix (more steps, larger numbers). `steps-shift` holds only problems "
    "that contradict a surface regularity of the training mix; it is not the ordinary benchmark. See docs/steps.md.",
    "steps-cue": "`steps-cue-shift` holds only comparisons that are told the other way round, as 13 % of the training mix "
    "are. Neither is the ordinary benchmark. See docs/steps.md.",
}
LIMITS = """- It knows the benchmark's few hundred words and numbers up to about {result}. On any other text it is useless.
- The text it was trained on is clean and made by code; how its loops behave says nothing certain about models of web text.
- One seed. Figures on `tuning` guided the choice of settings; figures here are on `test` unless they say otherwise."""


def install(run: str | Path, target: str | Path) -> Path:
    """Copy a finished run's model, its record and its curves into the folder `target`."""
    source, folder = RunFolder(Path(run)), Path(target)
    if not source.model.exists():
        raise ValueError(f"run {run} has no finished model: train it to the end, or resume it")
    _copy(source.model, folder)
    record = source.read_run()
    record["log"] = source.read_log()
    writing.write_whole(folder / "training.json", json.dumps(record, indent=1) + "\n")
    draw_curves(source.path, folder / "curves.png")
    return folder


def _copy(model: Path, folder: Path) -> None:
    """The files of a saved model, by their contents."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(model.iterdir()):
        writing.write_whole(folder / file.name, writing.read_plain(file))


def install_trajectory(trajectory: str | Path, target: str | Path) -> Path:
    """Copy a trajectory's measurements and their picture into the folder `target`, for its card."""
    source, folder = Path(trajectory), Path(target)
    records = read_trajectory(source)
    measured = {record["variant"] for record in records}
    trained = read_record(folder / "training.json")["recipe"]["text"]["variant"]
    if trained not in measured:
        raise ValueError(
            f"trajectory {source} was measured on {', '.join(sorted(measured))}, "
            f"but the model in {folder} was trained on {trained}"
        )
    draw_trajectory(records, folder / "trajectory.png")
    writing.write_whole(folder / FILE, writing.read_plain(source / FILE))
    return folder


def install_early(trajectory: str | Path, target: str | Path) -> Path:
    """Copy the early checkpoint that the rule picks from a trajectory into `target`."""
    chosen = early_checkpoint(read_trajectory(trajectory))
    if chosen is None:
        raise ValueError(f"trajectory {trajectory}: no checkpoint gains by the rule in two seeds, so there is none to install")
    run, folder = RunFolder(Path(trajectory) / f"seed-{chosen['seed']}"), Path(target)
    snapshot = run.snapshot_at(chosen["tokens"])
    _copy(snapshot if snapshot.exists() else run.model, folder)
    draw_curves(run.path, folder / "curves.png")
    record = run.read_run()
    recipe = record["recipe"]
    record["command"] = f"python -m experiments trajectory {recipe['name']}"
    recipe["description"] += f"; a checkpoint of the training of {recipe['name']}: a model still learning"
    recipe["name"] = folder.name
    record["log"] = [entry for entry in run.read_log() if entry["tokens"] <= chosen["tokens"]]
    writing.write_whole(folder / "training.json", json.dumps(record, indent=1) + "\n")
    return folder


def write_card(folder: str | Path) -> Path:
    """Write README.md of a model folder from its `training.json` and what `figures.json` holds so far."""
    path = Path(folder)
    training = read_record(path / "training.json")
    figures = read_record(path / "figures.json")
    variant = training["recipe"]["text"]["variant"]
    parts = [_head(training), _data(training), _recipe(training), _accuracy(figures, variant)]
    if f"dynamics/{variant}" in figures:
        parts.append(_loops(figures, variant))
    if any(name.startswith("effect/") for name in figures):
        parts.append(_effect(figures))
    if (path / FILE).exists():
        parts.append(trajectory_section(read_trajectory(path)))
    notes = path / "notes.md"  # what was tried and found, written by hand
    if notes.exists():
        parts.append(notes.read_text().strip())
    parts.append(f"## Limits\n{LIMITS.format(result=VARIANTS[variant].result)}")
    card = path / "README.md"
    return writing.write_whole(card, "\n\n".join(parts) + "\n")


def _head(training: dict[str, Any]) -> str:
    recipe = training["recipe"]
    command = training.get("command", f"loopcd train {recipe['name']}")
    return (
        f"# {recipe['name']}\n\n{recipe['description']}. Trained from scratch on the word problems of "
        f"`{recipe['text']['variant']}` by\n\n"
        f"    {command} --out runs/{command.split()[-1]}\n\n"
        "It is here so that looped decoding can be tried, tested and studied on any computer."
    )


def _data(training: dict[str, Any]) -> str:
    text = training["recipe"]["text"]
    return (
        f"## Data\nThe train split of `{text['variant']}`, made while training; "
        f"{100 * text['equations_early']:.0f} % of the rows hold bare equations in the first half of the training, "
        f"{100 * text['equations_late']:.0f} % afterwards. Tokens of questions weigh {text['question_weight']} in the loss."
    )


def _recipe(training: dict[str, Any]) -> str:
    last = [record for record in training["log"] if "loss" in record][-1]
    versions = ", ".join(f"{name} {version}" for name, version in training["versions"].items())
    recipe = training["recipe"]
    rows = [
        ("objective", _settings(recipe["objective_name"], recipe["objective"])),
        ("optimiser", _settings("Muon and AdamW", recipe["optimiser"])),
        ("tokens", f"{last['tokens']:,} (padding included), {last['step']:,} steps"),
        ("time", f"{last['minutes']:.0f} minutes on one thread of a shared two-core machine"),
        ("seed", str(training["seed"])),
        ("last loss", f"{last['loss']:.4f}"),
        ("versions", versions),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"## Training\n| | |\n|---|---|\n{table}\n\n![curves](curves.png)"


def _settings(name: str, values: dict[str, Any]) -> str:
    return f"{name}: " + ", ".join(f"{key} {value}" for key, value in values.items())


def _accuracy(figures: dict[str, Any], variant: str) -> str:
    measured = {name.split("/")[1]: value for name, value in figures.items() if name.startswith("accuracy/")}
    loops = list(next(iter(measured.values()))["right"])
    lines = [f"| split | {' | '.join(f'{loop} loops' for loop in loops)} |", "|---" * (len(loops) + 1) + "|"]
    for name, values in measured.items():
        shares = [_share(values["right"][loop], values["problems"]) for loop in loops]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    problems = next(iter(measured.values()))["problems"]
    title = f"## Accuracy by loops run\nGreedy, strict, {problems:,} test problems each, Wilson's 95 % intervals.\n"
    return "\n".join([title, *lines, "", _rises(measured, variant), "", WHAT_MISLEADS[related(variant)[0]]])


def _share(right: int, problems: int) -> str:
    share = wilson(right, problems)
    return f"{100 * share.accuracy:.1f} % ({100 * share.low:.1f}–{100 * share.high:.1f})"


def _rises(measured: dict[str, Any], variant: str) -> str:
    """The paired change from each number of loops to the next, on the ordinary mix."""
    if variant not in measured:
        return f"`{variant}` has not been measured yet."
    told = []
    for pair, (gained, lost) in measured[variant]["changes"].items():
        one, other = pair.split(">")
        points = 100 * (gained - lost) / measured[variant]["problems"]
        told.append(f"{one} → {other}: {points:+.1f} points ({gained} problems gained, {lost} lost)")
    return f"On `{variant}`, the same problems compared: " + "; ".join(told) + "."


def _loops(figures: dict[str, Any], variant: str) -> str:
    found = figures[f"dynamics/{variant}"]
    agreement = ", ".join(f"{100 * share:.1f}" for share in found["agreement"])
    return (
        f"## What the loops do\nOver {found['positions']:,} tokens of greedy answers to `{variant}` (test):\n\n"
        f"- hard tokens (the winner's margin fell by 1.5 or more from its peak): {100 * found['hard']:.1f} %\n"
        f"- contested positions (more than one plausible token at 0.1): {100 * found['contested']:.1f} %\n"
        f"- a draft by loop 1, 2, … agrees with the last loop at {agreement} % of the positions"
    )


def _effect(figures: dict[str, Any]) -> str:
    lines = [
        "| split | chosen on tuning | greedy | LoopCD − greedy | wrong→right | right→wrong | McNemar p |",
        "|---" * 7 + "|",
    ]
    for name, effect in figures.items():
        if name.startswith("effect/"):
            setting = effect["setting"]
            lines.append(
                f"| {name.split('/')[1]} | amateur {setting['amateur_loop']}, strength {setting['strength']} "
                f"| {100 * effect['greedy']:.1f} % | {100 * effect['difference']:+.2f} ± {100 * effect['margin']:.2f} "
                f"| {effect['wrong_to_right']} | {effect['right_to_wrong']} | {_p_value(effect['mcnemar_p'])} |"
            )
    tried = {name.split("/")[1]: value for name, value in figures.items() if name.startswith("grid/")}
    title = "## LoopCD\nPaired on the test split, 95 % intervals, in points; the setting with the largest gain on tuning.\n"
    return "\n".join([title, *lines, "", "The whole grid, on tuning:", "", *_grid(tried)])


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _grid(tried: dict[str, Any]) -> list[str]:
    settings = [effect["setting"] for effect in next(iter(tried.values()))]
    heads = [f"{setting['amateur_loop']}, {setting['strength']}" for setting in settings]
    lines = [f"| amateur, strength | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for variant, effects in tried.items():
        cells = [f"{100 * effect['difference']:+.1f} ± {100 * effect['margin']:.1f}" for effect in effects]
        lines.append(f"| {variant} ({effects[0]['problems']}) | {' | '.join(cells)} |")
    return lines
