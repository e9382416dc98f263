"""When does loop-wise contrast help? Greedy accuracy by loop and LoopCD's effect along training, over several seeds.

Each seed is trained from scratch into a folder of its own, with snapshots at set numbers of tokens; each snapshot is then
measured on the tuning split. Both parts can be interrupted: what is there already is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from experiments.effects import Setting, effects
from loopcd.evaluation.tasks import steps
from loopcd.models import LoopedModel
from loopcd.models.loading import load
from loopcd.tracing import writing
from loopcd.training.accuracy import answers, right
from loopcd.training.checkpoints import RunFolder, read_records
from loopcd.training.recipes import recipe_named
from loopcd.training.tokenizer import build_tokenizer
from loopcd.training.trainer import Display, Pace, Trainer

FILE = "trajectory.jsonl"


@dataclass(frozen=True)
class Plan:
    """What is run, fixed before anything is measured.

    tokens        length of each run; the schedule of the rate ends there
    checkpoints   snapshots, at numbers of tokens in geometric progression from `first` to `tokens`
    problems      problems measured at each snapshot, of each variant
    stopped       how many of them the model also answers when it is stopped after an early loop
    strengths     LoopCD's strengths, with the amateur at loop 1
    """

    recipe: str = "tiny-ouro"
    seeds: tuple[int, ...] = (0, 1, 2)
    tokens: int = 3_600_000
    first: int = 600_000
    checkpoints: int = 14
    problems: int = 400
    stopped: int = 200
    variants: tuple[str, ...] = ("steps", "steps-shift")
    strengths: tuple[float, ...] = (0.1, 0.2, 0.5)
    split: str = "tuning"

    @property
    def snapshots(self) -> tuple[int, ...]:
        ratio = (self.tokens / self.first) ** (1 / (self.checkpoints - 1))
        return tuple(round(self.first * ratio**index) for index in range(self.checkpoints))


def plan_of(recipe: str) -> Plan:
    """What `python -m experiments trajectory RECIPE` runs."""
    if recipe == "tiny-cue":  # the design was found with seeds 0 and 1, so it is tested on others
        variants = ("steps-cue", "steps-cue-shift")
        return Plan(recipe, seeds=(2, 3, 4), tokens=2_600_000, first=1_200_000, variants=variants)
    return Plan(recipe)


def run_trajectory(plan: Plan, out: str | Path, quiet: bool = False, compiled: bool = True) -> Path:
    """Train every seed and measure every snapshot of the plan; gives the file of the measurements."""
    if len(plan.seeds) < 1 or plan.checkpoints < 2:
        raise ValueError(f"a trajectory needs a seed and 2 checkpoints, got {plan.seeds} and {plan.checkpoints}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    writing.write_whole(folder / "plan.json", json.dumps(asdict(plan), indent=2) + "\n")
    with Display(f"{plan.recipe} trajectory", quiet) as display:
        for seed in plan.seeds:
            _train_seed(plan, seed, folder / f"seed-{seed}", display, compiled)
            _measure_seed(plan, seed, folder, display)
    return folder / FILE


def read_trajectory(out: str | Path) -> list[dict[str, Any]]:
    """One record for each (seed, tokens, variant)."""
    return read_records(Path(out) / FILE)


def _train_seed(plan: Plan, seed: int, out: Path, display: Display, compiled: bool) -> None:
    if RunFolder(out).model.exists():
        return
    tokenizer = build_tokenizer()
    recipe = recipe_named(plan.recipe, tokenizer, tokens=plan.tokens)
    # The last snapshot is the finished model: a batch rarely ends on a given number of tokens.
    pace = Pace(measure_every=None, measured=20, snapshots=plan.snapshots[:-1])
    trainer = Trainer(recipe, tokenizer, out, pace, seed, compiled)
    trainer.run(resume=trainer.folder.run_file.exists(), display=display)


def _measure_seed(plan: Plan, seed: int, out: Path, display: Display) -> None:
    run = RunFolder(out / f"seed-{seed}")
    folders = {tokens: run.snapshot_at(tokens) for tokens in plan.snapshots[:-1]}
    folders[plan.snapshots[-1]] = run.model
    done = {(record["seed"], record["tokens"], record["variant"]) for record in read_trajectory(out)}
    for tokens, folder in folders.items():
        for variant in plan.variants:
            if (seed, tokens, variant) in done:
                continue
            model, tokenizer = load(folder)
            assert tokenizer is not None
            record = {"seed": seed, "tokens": tokens, "variant": variant, "split": plan.split}
            record |= measure_checkpoint(model, tokenizer, plan, variant)
            writing.append(out / FILE, (json.dumps(record) + "\n").encode())
            display.say(f"seed {seed}, {tokens:,} tokens, {variant}: {_told(record)}")


def measure_checkpoint(model: LoopedModel, tokenizer: PreTrainedTokenizerBase, plan: Plan, variant: str) -> dict[str, Any]:
    """Greedy accuracy by loop (early loops on fewer problems) and LoopCD's effect at each strength, on one variant."""
    problems = steps.problems(variant, plan.split, plan.problems)
    greedy = answers(model, tokenizer, problems)
    some, accuracy = problems[: plan.stopped], dict[int, float]()
    for loop in _early_loops(model):
        accuracy[loop] = sum(right(some, answers(model, tokenizer, some, num_loops=loop))) / len(some)
    accuracy[model.num_loops] = sum(right(problems, greedy)) / len(problems)
    measured = effects(model, tokenizer, problems, [Setting(1, strength) for strength in plan.strengths], greedy)
    return {
        "problems": len(problems),
        "accuracy": accuracy,
        "effects": [{**asdict(effect), "difference": effect.difference, "margin": effect.margin} for effect in measured],
    }


def _early_loops(model: LoopedModel) -> Sequence[int]:
    return [loop for loop in (1, 2, 3, 4) if loop < model.num_loops]


def _told(record: dict[str, Any]) -> str:
    accuracy = " ".join(f"{loop}:{100 * share:.0f}" for loop, share in record["accuracy"].items())
    told = (f"{e['setting']['strength']}: {100 * e['difference']:+.1f}±{100 * e['margin']:.1f}" for e in record["effects"])
    return f"{accuracy}; LoopCD {', '.join(told)}"
