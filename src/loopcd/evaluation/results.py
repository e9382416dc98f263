"""From outcomes to results: accuracies, comparisons with greedy, and the JSON form of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loopcd.evaluation.plan import MethodSpec
from loopcd.evaluation.runner import Outcome
from loopcd.evaluation.statistics import Comparison, Rows, Share, compare, share
from loopcd.evaluation.task import Ceiling, Task

BASELINE = "greedy"


@dataclass(frozen=True)
class MethodResult:
    method: MethodSpec
    shares: dict[str, Share]  # by metric
    by_seed: dict[str, list[float]]  # accuracies, where there are several seeds
    versus_greedy: dict[str, Comparison]  # by metric; empty where greedy was not run
    first_token_divergence: float | None  # share of items whose first token is not greedy's
    loops_per_token: float
    tokens_per_second: float | None
    paper: dict[str, float]  # by metric, what the paper reports for this model, task and method
    cheated: int  # answers that tried to be taken for right; they count as wrong

    def as_json(self, metrics: Sequence[str]) -> dict[str, Any]:
        """All that does not depend on the clock."""
        found: dict[str, Any] = {metric: asdict(each) for metric, each in self.shares.items()}
        rarely = {"by_seed": self.by_seed, "paper": self.paper, "cheated": self.cheated}
        found |= {name: value for name, value in rarely.items() if value}
        versus = {metric: {**asdict(each), "ratio": each.ratio} for metric, each in self.versus_greedy.items()}
        first = versus.pop(metrics[0], None)
        if first is not None:
            first = {"metric": metrics[0], **first, "first_token_divergence": self.first_token_divergence, **versus}
        return {**found, "loops_per_token": self.loops_per_token, "versus_greedy": first}


@dataclass(frozen=True)
class Results:
    task: str
    protocol: str
    model: str
    items: int
    metrics: tuple[str, ...]
    seeds: tuple[int, ...] | None
    methods: tuple[MethodResult, ...]
    ceiling: Ceiling | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "protocol": self.protocol,
            "model": self.model,
            "items": self.items,
            "seeds": None if self.seeds is None else list(self.seeds),
            **({} if self.ceiling is None else {"ceiling": asdict(self.ceiling)}),
            "methods": {each.method.label: each.as_json(self.metrics) for each in self.methods},
        }

    def speeds(self) -> dict[str, dict[str, float | None]]:
        """Tokens per second, and relative to greedy: measured while the methods took turns, batch by batch."""
        base = next((each.tokens_per_second for each in self.methods if each.method.label == BASELINE), None)
        return {
            each.method.label: {
                "tokens_per_second": each.tokens_per_second,
                "relative": each.tokens_per_second / base if each.tokens_per_second and base else None,
            }
            for each in self.methods
        }

    def with_speeds(self) -> dict[str, Any]:
        """What `--json` prints."""
        found = self.as_json()
        for label, speed in self.speeds().items():
            found["methods"][label] |= {"tokens_per_second": speed["tokens_per_second"], "relative_speed": speed["relative"]}
        return found


def summarise(
    task: Task,
    model: str,
    seeds: tuple[int, ...] | None,
    outcomes: Sequence[Outcome],
    theirs: Mapping[str, dict[str, float]] | None = None,
) -> Results:
    """`theirs` are the paper's figures by the method's label and metric, where it has any."""
    by_method: dict[MethodSpec, list[Outcome]] = {}
    for each in outcomes:
        by_method.setdefault(each.run.method, []).append(each)
    greedy = next((made for spec, made in by_method.items() if spec.label == BASELINE), None)
    figures = theirs or {}
    results = tuple(_method_result(task, spec, made, greedy, figures.get(spec.label, {})) for spec, made in by_method.items())
    return Results(task.name, task.protocol, model, len(task.items), task.metrics, seeds, results, task.ceiling())


def _method_result(
    task: Task, spec: MethodSpec, made: list[Outcome], greedy: list[Outcome] | None, theirs: dict[str, float]
) -> MethodResult:
    rows = {metric: _rows(made, metric) for metric in task.metrics}
    tokens = sum(each.tokens for each in made)
    timed = [each.tokens_per_second for each in made if each.tokens_per_second is not None]
    return MethodResult(
        spec,
        {metric: share(right) for metric, right in rows.items()},
        {metric: [sum(row) / len(row) for row in right] for metric, right in rows.items()} if len(made) > 1 else {},
        {} if greedy is None else {metric: compare(_rows(greedy, metric), right) for metric, right in rows.items()},
        None if greedy is None else _first_token_divergence(greedy, made),
        sum(each.loops for each in made) / tokens if tokens else 0.0,
        sum(timed) / len(timed) if timed else None,
        theirs,
        sum(grades.get("cheated", False) for each in made for grades in each.grades),
    )


def _rows(made: Sequence[Outcome], metric: str) -> Rows:
    return [each.right(metric) for each in made]


def _first_token_divergence(greedy: Sequence[Outcome], made: Sequence[Outcome]) -> float:
    pairs = [pair for a, b in zip(greedy, made, strict=True) for pair in zip(a.token_ids, b.token_ids, strict=True)]
    return sum(before[:1] != after[:1] for before, after in pairs) / len(pairs)
