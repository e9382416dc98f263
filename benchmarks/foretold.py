"""What drafts bring where they are right as often as one says: a model's own work, with a told text in place of its guesses.

Random weights draft nothing of use. So each draft is computed as ever, and then replaced by the token that the undrafted method
wrote there, or at some places of the text, drawn beforehand, by another one. Just the share that one says is right: with a draw
for each draft, a text of 64 tokens would be as far from it by chance as what is measured.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from loopcd.bench.speeds import drafting
from loopcd.bench.subjects import MEDIUM, Subject, sharpen, texts
from loopcd.bench.timing import Sample, Stopwatch, alternately, ratio
from loopcd.decoding import Greedy, LoopCD, Method, SelfDraft
from loopcd.decoding.draft import LONGEST, DraftPlan, DraftReport
from loopcd.decoding.loop import collect
from loopcd.decoding.passes import pass_costs
from loopcd.decoding.rounds import Rounds
from loopcd.models import LoopedModel
from loopcd.models.stages import LoopState


@contextmanager
def foretold(begins: int, text: Sequence[int], right: float, seed: int) -> Iterator[None]:
    """Drafts of one row are what its `text`, which begins behind so many tokens, has at a share of the places, `right`, and
    another token at the others."""
    guess, told_right = Rounds.guess, [place < right * len(text) for place in range(len(text))]
    Random(seed).shuffle(told_right)

    def told(rounds: Rounds, state: LoopState) -> Tensor:
        guessed = guess(rounds, state)
        place = min(state.tokens.span.stop - begins, len(text) - 1)
        wrong = (text[place] + 1) % rounds.reader.model.config.vocab_size
        return torch.full_like(guessed, text[place] if told_right[place] else wrong)

    with patch.object(Rounds, "guess", told):
        yield


def best_plan(model: LoopedModel, right: float) -> DraftPlan:
    """An eighth of the loops drafts, as far as pays best by the costs of passes here."""
    loops, costs = max(1, model.num_loops // 8), pass_costs(model, 1)
    plans = [DraftPlan(loops, length) for length in range(2, LONGEST + 1)]
    return max(plans, key=lambda plan: plan.gain(model, model.num_loops, right, 1, costs))


def measure_foretold(subject: Subject, right: float, rounds: int) -> dict[str, Any]:
    """One text after the prompt's own token, by CPU time: drafted LoopCD over plain greedy and over plain LoopCD."""
    prompt = subject.prompts(1)
    plan = best_plan(subject.model, right)
    draft = SelfDraft(plan.loops, plan.length, fallback=False, wave=False)
    methods: dict[str, Method] = {"greedy": Greedy(), "loopcd": LoopCD(), "drafted": LoopCD(draft=draft)}
    plain = LoopCD().rows(subject.job(prompt))
    text, reports, same = texts(plain)[0], list[DraftReport](), list[bool]()

    def task(name: str) -> Sample:
        steps, watch = methods[name].steps(subject.job(prompt)), Stopwatch()
        first = next(steps)
        reports.extend([] if first.drafts is None else [first.drafts])
        with foretold(len(prompt[0]), text, right, seed=len(reports)), watch.running():
            rest = list(steps)
        if name == "drafted":
            same.append(texts(collect(iter([first, *rest]), 0)) == texts(plain))
        return watch.sample(len(rest))

    samples = alternately({name: lambda name=name: task(name) for name in methods}, rounds)
    return {
        "right": right,
        "over greedy": asdict(ratio(samples["drafted"], samples["greedy"], cpu=True)),
        "over loopcd": asdict(ratio(samples["drafted"], samples["loopcd"], cpu=True)),
        "expected": plan.gain(subject.model, subject.model.num_loops, right, 1, pass_costs(subject.model, 1)),
        "contested": float(plain.contested.float().mean()),
        "texts": len(same),
        "identical_texts": sum(same),
        **drafting(reports),
    }


def bench_foretold(
    rights: Sequence[float], rounds: int, tokens: int, say: Callable[[str], None], small: bool = False
) -> dict[str, Any]:
    """By medium model and how often drafts are right; `small` takes a fraction of their layers' work."""
    found: dict[str, Any] = {}
    for name, make in MEDIUM.items():
        width = "n_embd" if name.startswith("huginn") else "hidden_size"
        subject = Subject(name, make(**{width: 128, "intermediate_size": 384}) if small else make(), None, tokens)
        sharpen(subject, subject.prompts(1))
        for right in rights:
            say(f"foretold: {name}, {right:.0%} of the drafts right")
            found.setdefault(name, {})[f"{right:.2f}"] = measure_foretold(subject, right, rounds)
    return found
