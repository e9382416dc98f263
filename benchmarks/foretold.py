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
from loopcd.decoding.draft import LONGEST, DraftPlan
from loopcd.decoding.flight import Unit
from loopcd.decoding.loop import Rows, collect
from loopcd.decoding.passes import pass_costs
from loopcd.decoding.rounds import Rounds
from loopcd.decoding.ticks import Ticks
from loopcd.models import LoopedModel
from loopcd.models.stages import LoopState


@contextmanager
def foretold(begins: int, text: Sequence[int], right: float, seed: int) -> Iterator[None]:
    """Drafts of one row are what its `text`, which begins behind so many tokens, has at a share of the places, `right`, and
    another token at the others, however often a wave looks at them."""
    guess, named, told_right = Rounds.guess, Ticks.guess, [place < right * len(text) for place in range(len(text))]
    Random(seed).shuffle(told_right)

    def told(column: int, vocabulary: int) -> int:
        place = min(column - begins, len(text) - 1)
        return text[place] if told_right[place] else (text[place] + 1) % vocabulary

    def in_rounds(rounds: Rounds, state: LoopState) -> Tensor:
        return torch.full_like(guess(rounds, state), told(state.tokens.span.stop, rounds.reader.model.config.vocab_size))

    def in_waves(ticks: Ticks, tips: Sequence[Unit], logits: Tensor) -> list[int]:
        named(ticks, tips, logits)
        return [told(unit.span.stop, logits.shape[-1]) for unit in tips]

    with patch.object(Rounds, "guess", in_rounds), patch.object(Ticks, "guess", in_waves):
        yield


def plans(model: LoopedModel, right: float) -> dict[str, DraftPlan]:
    """An eighth of the loops drafts: in rounds as long as pays best by the costs of passes here, and in a wave."""
    loops, costs = max(1, model.num_loops // 8), pass_costs(model, 1)
    rounds = [DraftPlan(loops, length) for length in range(2, LONGEST + 1)]
    best = max(rounds, key=lambda plan: plan.gain(model, model.num_loops, right, 1, costs))
    return {"rounds": best, "wave": DraftPlan.wave_of(loops, model.num_loops)}


def measure_foretold(subject: Subject, right: float, rounds: int) -> dict[str, Any]:
    """One text after the prompt's own token, by CPU time: LoopCD drafted in rounds and in a wave, over both undrafted."""
    prompt, model = subject.prompts(1), subject.model
    chosen = plans(model, right)
    methods: dict[str, Method] = {"greedy": Greedy(), "loopcd": LoopCD()}
    for kind, plan in chosen.items():
        length = None if plan.wave else plan.length
        methods[kind] = LoopCD(draft=SelfDraft(plan.loops, length, fallback=False, wave=plan.wave))
    plain = LoopCD().rows(subject.job(prompt))
    text, made = texts(plain)[0], {kind: list[Rows]() for kind in methods}

    def task(name: str) -> Sample:
        steps, watch = methods[name].steps(subject.job(prompt)), Stopwatch()
        first = next(steps)
        with foretold(len(prompt[0]), text, right, seed=len(made[name])), watch.running():
            rest = list(steps)
        made[name].append(collect(iter([first, *rest]), 0))
        return watch.sample(len(rest))

    samples = alternately({name: lambda name=name: task(name) for name in methods}, rounds)
    return {
        kind: {
            "right": right,
            "over greedy": asdict(ratio(samples[kind], samples["greedy"], cpu=True)),
            "over loopcd": asdict(ratio(samples[kind], samples["loopcd"], cpu=True)),
            "expected": plan.gain(model, model.num_loops, right, 1, pass_costs(model, 1)),
            "contested": float(plain.contested.float().mean()),
            "texts": len(made[kind]),
            "identical_texts": sum(texts(each) == texts(plain) for each in made[kind]),
            **drafting([each.drafts for each in made[kind]]),
        }
        for kind, plan in chosen.items()
    }


def bench_foretold(
    rights: Sequence[float], rounds: int, tokens: int, say: Callable[[str], None], small: bool = False
) -> dict[str, Any]:
    """By medium model, how often drafts are right, and how they are made; `small` takes a fraction of their layers' work."""
    found: dict[str, Any] = {}
    for name, make in MEDIUM.items():
        width = "n_embd" if name.startswith("huginn") else "hidden_size"
        subject = Subject(name, make(**{width: 128, "intermediate_size": 384}) if small else make(), None, tokens)
        sharpen(subject, subject.prompts(1))
        for right in rights:
            say(f"foretold: {name}, {right:.0%} of the drafts right")
            found.setdefault(name, {})[f"{right:.2f}"] = measure_foretold(subject, right, rounds)
    return found
