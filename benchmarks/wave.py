"""Waves against rounds and against plain decoding, on a deep model whose loops settle; and where nothing is accepted.

A wave of drafts that are right with probability p needs (R·a + L) / R ticks a token, R being 1 / (1 − p); of L loops, a draft.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from math import sqrt
from typing import Any

import torch

from loopcd.bench.subjects import MEDIUM, Subject, disagreeing, texts, token_count
from loopcd.bench.timing import Sample, Stopwatch, alternately, ratio
from loopcd.decoding import Greedy, Method, SelfDraft
from loopcd.decoding.draft import DraftReport
from loopcd.decoding.loop import Rows, collect
from loopcd.models.layout import lay_out

LOOPS, EARLY, ROUND = 32, 4, 7  # of the model, of a draft, and the tokens of a round that suits them
DRAFTS = {
    "wave": SelfDraft(EARLY, wave=True),
    "rounds": SelfDraft(EARLY, ROUND, wave=False),
    "by rule": SelfDraft(None, None),
}

# how much of the latent a loop takes over: the less, the more often an early loop names the last one's token
SETTLES = {"settling": 0.25, "settling late": 0.35}


@torch.no_grad()
def settling(model: Any, taken: float, seed: int = 0) -> Any:
    """The Huginn with weights drawn so that its latent converges over the loops, and a head that tells tokens apart."""
    generator, width = torch.Generator().manual_seed(seed), model.config.n_embd
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "wte" not in name and "lm_head" not in name:
            weight.copy_(torch.randn(weight.shape, generator=generator) / sqrt(weight.shape[1]))
    model.transformer["adapter"].weight[:, :width] *= taken
    model.lm_head.weight.copy_(torch.randn(model.lm_head.weight.shape, generator=generator) * 0.3)
    return model


def ticks_expected(acceptance: float, early: int, loops: int) -> float:
    """Ticks a token, by the formula."""
    return early + loops * (1 - acceptance)


def bench_wave(rounds: int, tokens: int, say: Callable[[str], None], small: bool = False) -> dict[str, Any]:
    """By draft: CPU time over undrafted greedy's and over rounds', what the wave did, and the same with nothing accepted."""
    size = {"n_embd": 128, "n_heads": 2, "intermediate_size": 384} if small else {}
    deep = MEDIUM["huginn-medium"](mean_recurrence=LOOPS, **size)
    found: dict[str, Any] = {"loops": LOOPS, "early": EARLY}
    models = {name: settling(deepcopy(deep), taken) for name, taken in SETTLES.items()}
    for name, model in (models | {"refusing": disagreeing(deep)}).items():
        say(f"wave: huginn-medium with {LOOPS} loops, {name}")
        lay_out(model)
        drafts = DRAFTS if name in SETTLES else {"wave": DRAFTS["wave"]}
        found[name] = _measure(Subject("huginn-medium", model, None, tokens), drafts, rounds)
    return found


def _measure(subject: Subject, drafts: Mapping[str, SelfDraft], rounds: int) -> dict[str, Any]:
    prompt = subject.prompts(1)
    methods: dict[str, Method] = {"greedy": Greedy(), **{name: Greedy(draft=draft) for name, draft in drafts.items()}}
    made: dict[str, list[Rows]] = {name: [] for name in methods}

    def task(name: str) -> Sample:
        """What follows the prompt's own token: the prompt is read alike by all."""
        steps, watch = methods[name].steps(subject.job(prompt)), Stopwatch()
        first = next(steps)
        with watch.running():
            rest = list(steps)
        made[name].append(collect(iter([first, *rest]), 0))
        return watch.sample(len(rest))

    samples = alternately({name: lambda name=name: task(name) for name in methods}, rounds)
    plain = texts(made["greedy"][0])
    told: dict[str, Any] = {}
    for name in drafts:
        told[name] = {"over greedy": asdict(ratio(samples[name], samples["greedy"], cpu=True))}
        if "rounds" in drafts and name != "rounds":
            told[name]["over rounds"] = asdict(ratio(samples[name], samples["rounds"], cpu=True))
        same = sum(texts(rows) == plain for rows in made[name])
        told[name] |= {"texts": len(made[name]), "identical_texts": same, **_did(made[name])}
    return told


def _did(made: Sequence[Rows]) -> dict[str, Any]:
    """Of the last text, which knew what the first ones taught."""
    report: DraftReport = made[-1].drafts
    told: dict[str, Any] = {"draft_loops": report.loops, "acceptance": report.acceptance, "near_ties": report.near_ties}
    if report.ticks:
        written = token_count(made[-1]) - 1  # the prompt's pass gives the first
        told["ticks_a_token"] = report.ticks / written
        told["ticks_expected"] = ticks_expected(report.acceptance, report.loops, LOOPS)
    return told
