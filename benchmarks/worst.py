"""The worst case of drafting: random weights, so that everything is refused, and no experience with the model."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

from loopcd.bench.speeds import drafting
from loopcd.bench.subjects import MEDIUM, Subject, disagreeing, token_count
from loopcd.bench.timing import Sample, Stopwatch, ratio
from loopcd.decoding import Greedy, Method, SelfDraft

# by rule, and as a user might set it without looking
DRAFTS = {"by rule": SelfDraft(), "length 4": SelfDraft(length=4)}


def measure_worst(subject: Subject, draft: SelfDraft, batch: int, rounds: int) -> dict[str, Any]:
    """Drafted over undrafted greedy, by CPU time: in the first texts (cold: the fallback learns) and in the next (warm)."""
    plain, drafted = Greedy(), Greedy(draft=draft)
    samples: dict[str, list[Sample]] = {"plain": [], "cold": [], "warm": []}
    reports = []
    prompts = subject.prompts(rounds * batch)
    for number in range(rounds):
        group = prompts[number * batch :][:batch]
        # weights of its own for each round; and what drafting learned is kept by model, so a copy knows nothing
        own = replace(subject, model=disagreeing(deepcopy(subject.model), seed=number))
        if number == 0:
            _timed(own, plain, group)
        samples["plain"].append(_timed(own, plain, group)[0])
        for name in ("cold", "warm"):
            sample, report = _timed(own, drafted, group)
            samples[name].append(sample)
            reports.append(report)
        samples["plain"][-1] += _timed(own, plain, group)[0]
    told = {name: asdict(ratio(samples[name], samples["plain"], cpu=True)) for name in ("cold", "warm")}
    return {**told, **drafting(reports)}


def _timed(subject: Subject, method: Method, prompts: Sequence[Sequence[int]]) -> tuple[Sample, Any]:
    job, watch = subject.job(prompts), Stopwatch()
    with watch.running():
        rows = method.rows(job)
    return watch.sample(token_count(rows)), rows.drafts


def bench_worst(
    batches: Sequence[int], rounds: int, tokens: int, say: Callable[[str], None], small: bool = False
) -> dict[str, Any]:
    """On the medium models; `small` takes an eighth of their layers' work, for a quick run."""
    found: dict[str, Any] = {}
    for name, make in MEDIUM.items():
        width = "n_embd" if name.startswith("huginn") else "hidden_size"
        model = make(**{width: 128, "intermediate_size": 384}) if small else make()
        for batch in batches:
            for label, draft in DRAFTS.items():
                say(f"worst case: {name}, batch {batch}, draft {label}")
                told = measure_worst(Subject(name, model, None, tokens), draft, batch, rounds)
                found.setdefault(name, {}).setdefault(str(batch), {})[label] = told
    return found
