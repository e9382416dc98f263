"""The paper's settings and figures (percent where it prints percent), to run with and to be put beside ours.

Source: "LoopCD: Loop-wise Contrastive Decoding for Improving Reasoning in Looped Language Models" (arXiv 2609.24196); the
settings of Table 2 from its authors' code. Its pictures are known by what the text says of them; the tables are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from loopcd.models.catalogue import published_as
from loopcd.models.presets import Preset

Family = Literal["huginn", "ouro"]
FAMILIES: tuple[Family, ...] = ("huginn", "ouro")
NAMES: dict[Family, str] = {"huginn": "Huginn-0125", "ouro": "Ouro-1.4B"}
_LOOPS: dict[Family, int] = {"huginn": 32, "ouro": 4}
_FAMILY: dict[str, Family] = {"tomg-group-umd/huginn-0125": "huginn", "ByteDance/Ouro-1.4B": "ouro"}  # by hub id
_BENCHMARKS = {  # by task: how the paper writes it, what it reports, and how many new tokens its authors' code allows
    "gsm8k": ("GSM8K", ("flex", "strict"), 256),
    "math500": ("MATH-500", ("flex", "strict"), 512),
    "humaneval": ("HumanEval", ("base", "plus"), 512),
    "mbpp": ("MBPP", ("base", "plus"), 1024),
    "strategyqa": ("StrategyQA", ("accuracy",), 256),
}
SHOWN = {task: name for task, (name, _, _) in _BENCHMARKS.items()}
READINGS = tuple((task, reading) for task, (_, readings, _) in _BENCHMARKS.items() for reading in readings)
MAX_NEW_TOKENS = {task: tokens for task, (_, _, tokens) in _BENCHMARKS.items()}

# LoopCD's setting in Table 2, the best of the grid on each benchmark, in their order; loops count from 1
_SETTINGS: dict[Family, tuple[Preset, ...]] = {
    "huginn": (Preset(6, 0.3), Preset(8, 0.1), Preset(8, 0.3), Preset(8, 0.3), Preset(8, 0.3)),
    "ouro": (Preset(1, 0.3), Preset(2, 0.1), Preset(2, 0.3), Preset(1, 0.2), Preset(1, 0.3)),
}
_FIXED_SETTING: dict[Family, Preset] = {"huginn": Preset(8, 0.3), "ouro": Preset(2, 0.2)}  # Table 9

# Table 2, in the order of READINGS; then the tokens per second relative to greedy
_MAIN: dict[Family, dict[str, tuple[float, ...]]] = {
    "huginn": {
        "greedy": (33.21, 23.12, 13.60, 12.20, 24.39, 20.73, 40.74, 33.60, 54.02, 1.00),
        "mti": (33.51, 24.11, 15.20, 13.40, 25.00, 20.73, 42.06, 35.71, 54.19, 0.93),
        "selfeval": (34.04, 24.03, 13.80, 12.60, 21.95, 19.51, 40.48, 33.60, 53.62, 0.28),
        "noisecd": (33.36, 22.06, 14.20, 13.40, 23.78, 20.73, 42.59, 35.45, 53.14, 0.98),
        "loopcd": (36.62, 26.46, 15.60, 15.20, 30.49, 27.44, 42.06, 36.77, 55.24, 0.98),
    },
    "ouro": {
        "greedy": (78.70, 60.65, 50.20, 34.60, 69.50, 65.85, 72.75, 61.90, 64.00, 1.00),
        "mti": (76.88, 57.85, 54.20, 22.60, 70.73, 65.24, 74.07, 62.96, 65.07, 0.93),
        "selfeval": (77.06, 54.66, 46.80, 27.80, 74.39, 69.51, 69.31, 58.73, 56.86, 0.25),
        "noisecd": (77.03, 57.92, 51.00, 34.20, 71.95, 67.68, 71.16, 59.26, 64.72, 0.99),
        "loopcd": (81.05, 64.06, 51.40, 37.40, 74.39, 70.12, 74.60, 62.96, 66.81, 0.99),
    },
}

# Table 9: LoopCD with one setting for all benchmarks; greedy is that of Table 2
_FIXED: dict[Family, tuple[float, ...]] = {
    "huginn": (36.39, 24.34, 15.60, 14.20, 30.49, 27.44, 42.06, 36.77, 55.24),
    "ouro": (79.83, 62.40, 51.20, 37.20, 71.34, 67.68, 72.75, 62.17, 64.67),
}

# Table 10, Huginn: mean and half of the 95 % interval over four seeds
_SEEDS: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("gsm8k", "flex"): {"greedy": (32.98, 0.97), "loopcd": (35.88, 0.72)},
    ("math500", "flex"): {"greedy": (13.75, 0.71), "loopcd": (16.00, 1.58)},
    ("humaneval", "base"): {"greedy": (23.32, 1.46), "loopcd": (30.49, 1.37)},
    ("humaneval", "plus"): {"greedy": (19.66, 1.46), "loopcd": (27.59, 1.46)},
    ("mbpp", "base"): {"greedy": (40.67, 0.63), "loopcd": (42.79, 1.05)},
    ("mbpp", "plus"): {"greedy": (33.33, 0.60), "loopcd": (35.32, 1.00)},
    ("strategyqa", "accuracy"): {"greedy": (53.77, 0.07), "loopcd": (55.71, 0.68)},
}

# Table 1: right answers that become wrong, after replacing easy and hard tokens (Huginn)
REPLACEMENT = {"gsm8k": {"easy": 31.3, "hard": 52.9}, "strategyqa": {"easy": 25.9, "hard": 71.9}}
# Table 3: flex accuracy on GSM8K and MATH-500, and tokens per second relative to greedy (Huginn)
EARLY_EXIT = {
    "greedy": {"gsm8k": 33.21, "math500": 13.60, "speed": 1.00},
    "loopcd": {"gsm8k": 36.62, "math500": 15.60, "speed": 0.98},
    "exit": {"gsm8k": 33.66, "math500": 14.60, "speed": 1.98},
    "exit+loopcd": {"gsm8k": 34.12, "math500": 15.60, "speed": 1.94},
}
# Table 4: by amateur loop of 32, strength 0.3 (Huginn)
AMATEUR = {
    "gsm8k": {4: 35.41, 8: 36.39, 12: 34.42, 16: 33.51, 20: 32.90},
    "humaneval": {4: 26.83, 8: 30.49, 12: 26.22, 16: 24.39, 20: 25.00},
}
# Table 5: accuracy and share of positions, on GSM8K (Huginn)
SELECTIVE = {
    "greedy": (33.21, 0.0),
    "all": (36.39, 100.0),
    "hard": (35.71, 10.7),
    "easy": (34.65, 89.0),
    "hard numeric": (34.04, 2.9),
    "easy numeric": (32.52, 26.2),
    "hard operator": (33.51, 0.7),
    "easy operator": (33.28, 6.9),
}
MARGIN_FLIPS = {"easy": 0.82, "hard": 8.78, "ratio": 10.7}  # Table 6, on GSM8K (Huginn)
FREQUENCIES = {"early overconfidence": (9.4, 11.1), "Late-Flip": (2.45, 2.96)}  # Table 7: right, wrong answers
REVERSION = {"repaired": 9.9, "broken": 23.9}  # Table 8
HARD_SHARE = (10.0, 15.0)  # Figure 4: "roughly"
CHANGES = {"ratio": 1.49, "first token": 1.2}  # appendix


def family(model: str) -> Family | None:
    """Which of the paper's two models this name, folder or hub id is; None: neither."""
    return _FAMILY.get(published_as(model) or "")


def runs_so(model: str, loops: int, dtype: str) -> bool:
    """Whether the paper ran this model with so many loops, and its weights as they are."""
    known = family(model)
    return known is not None and loops == _LOOPS[known] and dtype != "int8"


def asks_so(task: Mapping[str, Any]) -> bool:
    """Whether the paper asked so, by what a manifest says of the task: its prompts, data and limit, on the items it reports."""
    asked = task["protocol"] in ("paper", "paper, chat prompt") and task["max_new_tokens"] == MAX_NEW_TOKENS.get(task["name"])
    return asked and task.get("split") in ("test", "all") and all(each["known"] is not False for each in task.get("data", ()))


def _setting(family: Family, task: str) -> Preset:
    return _SETTINGS[family][list(_BENCHMARKS).index(task)]


def setting(model: str, task: str) -> Preset:
    """LoopCD's of Table 2, for one of the paper's models on one of its benchmarks."""
    known = family(model)
    if known is None:
        raise ValueError(
            f"--settings paper: the paper has no setting for {model}; its models are {' and '.join(_FAMILY)}, by hub id or as "
            "a folder with their config.json"
        )
    if task not in SHOWN:
        raise ValueError(f"--settings paper: the paper has no setting for the task {task}; its tasks are {', '.join(SHOWN)}")
    return _setting(known, task)


def beside(model: str, task: str, method: str, used: Preset | None = None) -> dict[str, float]:
    """By reading, what the paper reports for a model and task of its own: Table 2's figures, or Table 9's where LoopCD was
    `used` with the setting that is fixed there. Empty where it reports nothing."""
    known = family(model) if task in SHOWN else None
    if known is None or method not in _MAIN[known]:
        return {}
    row: tuple[float, ...] = _MAIN[known][method]
    if method == "loopcd" and used != _setting(known, task):
        if used != _FIXED_SETTING[known]:
            return {}
        row = _FIXED[known]
    return {reading: figure for (name, reading), figure in zip(READINGS, row, strict=False) if name == task}


def known_task(task: str) -> str:
    """The benchmark whose figures stand beside ours: the task itself, or GSM8K where the paper does not have it."""
    return task if task in SHOWN else "gsm8k"


def known_reading(task: str, metric: str) -> tuple[str, str]:
    """The paper's benchmark and reading for a task and metric of ours."""
    readings = _BENCHMARKS[known_task(task)][1]
    return known_task(task), metric if metric in readings else readings[0]


def main(family: Family, method: str, task: str, metric: str) -> float | None:
    """Table 2; None for a method that it does not have."""
    return _MAIN[family][method][READINGS.index(known_reading(task, metric))] if method in _MAIN[family] else None


def speed(family: Family, method: str) -> float | None:
    """Table 2, tokens per second relative to greedy."""
    return _MAIN[family][method][-1] if method in _MAIN[family] else None


def fixed(family: Family, task: str, metric: str) -> tuple[float, float]:
    """Table 9: greedy, LoopCD."""
    place = READINGS.index(known_reading(task, metric))
    return _MAIN[family]["greedy"][place], _FIXED[family][place]


def seeds(method: str, task: str, metric: str) -> tuple[float, float] | None:
    """Table 10: mean and half of the interval; None for a reading that it does not have."""
    return _SEEDS.get(known_reading(task, metric), {}).get(method)
