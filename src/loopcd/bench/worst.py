"""The worst case of drafting: random weights, so that everything is refused, and no experience with the model."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

from loopcd.bench.jobs import Subject, token_count
from loopcd.bench.methods import drafting
from loopcd.bench.subjects import MEDIUM, disagreeing
from loopcd.bench.timing import Sample, Stopwatch, ratio
from loopcd.decoding import Greedy, Method, SelfDraft

# by rule, and as a user might set it without looking
DRAFTS = {"by rule": SelfDraft(loops=None, length=None), "length 4": SelfDraft(loops=None, length=4)}


def measure_worst(subject: Subject, draft: SelfDraft, rounds: int) -> dict[str, Any]:
    """Drafted over undrafted greedy: in the first text (cold: the fallback learns) and in a second one (warm)."""
    plain, drafted = Greedy(), Greedy(draft=draft)
    samples: dict[str, list[Sample]] = {"plain": [], "cold": [], "warm": []}
    reports = []
    for number, prompt in enumerate(subject.prompts(rounds)):
        # what drafting learned is kept by model, so a copy knows nothing
        own = replace(subject, model=deepcopy(subject.model))
        if number == 0:
            _timed(own, plain, prompt)
        samples["plain"].append(_timed(own, plain, prompt)[0])
        for name in ("cold", "warm"):
            sample, report = _timed(own, drafted, prompt)
            samples[name].append(sample)
            reports.append(report)
        samples["plain"][-1] += _timed(own, plain, prompt)[0]
    told = {name: asdict(ratio(samples[name], samples["plain"])) for name in ("cold", "warm")}
    return {**told, **drafting(reports)}


def _timed(subject: Subject, method: Method, prompt: list[int]) -> tuple[Sample, Any]:
    job, watch = subject.job([prompt]), Stopwatch()
    with watch.running():
        rows = method.rows(job)
    return watch.sample(token_count(rows)), rows.drafts


def bench_worst(rounds: int, tokens: int, say: Callable[[str], None], small: bool = False) -> dict[str, Any]:
    """On the medium models; `small` takes an eighth of their layers' work, for a quick run."""
    found: dict[str, Any] = {}
    for name, make in MEDIUM.items():
        changes = {"huginn-medium": {"n_embd": 128, "intermediate_size": 384}}.get(
            name, {"hidden_size": 128, "intermediate_size": 384}
        )
        model = disagreeing(make(**changes) if small else make())
        for label, draft in DRAFTS.items():
            say(f"worst case: {name}, draft {label}")
            told = measure_worst(Subject(name, model, None, tokens), draft, rounds)
            found.setdefault(name, {})[label] = told
    return found
