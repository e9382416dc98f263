"""Beyond the paper: an amateur that is chosen at every token, against the fixed loop. `python -m experiments auto`.

The paper's last section hopes for more from "adaptively selecting the optimal contrasting loop index during decoding". Each
rule here makes the amateur's logits of the plausible tokens from what the first half of the loops say about them:

    fixed        one loop for all tokens: LoopCD itself
    contest      the same, but no contrast where amateur and expert rank the plausible tokens alike
    divergence   the loop with the largest Jensen-Shannon divergence from the expert over the plausible set
    peak         the loop at which the expert's choice leads the other plausible tokens by most
    mean         the mean of the loops' logits: `LoopCD(amateur_loop="auto")`

Loop and strength of each are chosen on the tuning split; then each is run once on the test split.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from experiments.contests import Contests, at_loop
from loopcd.analysis.elements.element import Element, points
from loopcd.analysis.laboratory import GREEDY, Laboratory, Wanted
from loopcd.analysis.result import Finding, Result
from loopcd.decoding import LoopCD, Method, rules
from loopcd.decoding.auto import AmateurRule, AutoScorer, candidate_loops
from loopcd.decoding.reader import Reader
from loopcd.decoding.scoring import Scorer
from loopcd.evaluation.data import item_number
from loopcd.evaluation.engine import CompletionRequest
from loopcd.evaluation.plan import batches
from loopcd.evaluation.runner import Progress
from loopcd.evaluation.statistics import compare, wilson
from loopcd.evaluation.store import sample_line
from loopcd.evaluation.table import Cell, Column, Estimate, Table
from loopcd.evaluation.task import Split

STRENGTHS = (0.1, 0.2, 0.3, 0.5)


# -- the rules


def peak(early: Tensor, expert: Tensor, allowed: Tensor) -> Tensor:
    """Of each row the loop with the largest z_i(y*) − max over plausible v ≠ y* of z_i(v); y* is the expert's choice."""
    best = expert.masked_fill(~allowed, rules.IMPOSSIBLE).argmax(dim=-1)  # [rows]
    among = early.masked_fill(~allowed[:, None], rules.IMPOSSIBLE)
    margins = rules.margin(among, best[:, None].expand(early.shape[:2]))  # [rows, loops]
    return early[torch.arange(len(early)), margins.argmax(dim=1)]


def jensen_shannon(one: Tensor, other: Tensor, allowed: Tensor) -> Tensor:
    """JS(p ‖ q) = ½ KL(p ‖ m) + ½ KL(q ‖ m) with m = ½ (p + q), in nats, both normalised over V_head = `allowed`."""
    log_p, log_q = (logits.masked_fill(~allowed, rules.IMPOSSIBLE).log_softmax(dim=-1) for logits in (one, other))
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    terms = (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)) / 2
    return terms.masked_fill(~allowed, 0.0).sum(dim=-1)


def divergence(early: Tensor, expert: Tensor, allowed: Tensor) -> Tensor:
    """Of each row the loop with the largest JS(p_i ‖ p_e) over the plausible set; of equals the earliest."""
    furthest = jensen_shannon(early, expert[:, None], allowed[:, None]).argmax(dim=1)
    return early[torch.arange(len(early)), furthest]


def contest(loop: int) -> AmateurRule:
    """The fixed loop, silent (all tokens alike) where it ranks the plausible tokens as the expert does."""

    def rule(early: Tensor, expert: Tensor, allowed: Tensor) -> Tensor:
        amateur = early[:, loop - 1]
        order = expert.masked_fill(~allowed, rules.IMPOSSIBLE).argsort(dim=-1, descending=True, stable=True)
        ranked, inside = amateur.gather(1, order), allowed.gather(1, order)
        alike = ((ranked[:, 1:] <= ranked[:, :-1]) | ~inside[:, 1:]).all(dim=1)
        return amateur.masked_fill(alike[:, None], 0.0)

    return rule


FIXED: dict[str, Callable[[int], AmateurRule]] = {"fixed": at_loop, "contest": contest}  # with a loop to be set
CHOOSING: dict[str, AmateurRule] = {"divergence": divergence, "peak": peak, "mean": rules.mean_amateur}


@dataclass(frozen=True)
class Variant:
    rule: str
    strength: float
    loop: int | None = None  # of the rules with a fixed one

    @property
    def amateur(self) -> AmateurRule:
        return CHOOSING[self.rule] if self.loop is None else FIXED[self.rule](self.loop)

    @property
    def slug(self) -> str:
        return f"auto-{self.rule}-strength{self.strength:g}" + ("" if self.loop is None else f"-loop{self.loop}")


def variants(loops: int) -> list[Variant]:
    """Every rule at every setting."""
    chosen = [Variant(rule, strength) for rule in CHOOSING for strength in STRENGTHS]
    fixed = [Variant(rule, strength, loop) for rule in FIXED for loop in candidate_loops(loops) for strength in STRENGTHS]
    return fixed + chosen


@dataclass(frozen=True)
class ChosenAmateur(Method):
    """Decoding with a variant."""

    variant: Variant = Variant("divergence", 0.3)
    plausibility: float = 0.1

    def scorer(self, reader: Reader, tokenizer: object) -> Scorer:
        loops, strength = candidate_loops(reader.num_loops), self.variant.strength
        settings = {"strength": strength, "plausibility": self.plausibility}
        return AutoScorer(reader.model, loops, self.variant.amateur, "shared", **settings)


def method_of(variant: Variant) -> Method:
    if variant.rule == "fixed":
        return LoopCD(variant.loop, variant.strength)
    return ChosenAmateur(variant, LoopCD().plausibility)


# -- the measurement


@dataclass(frozen=True)
class Measured:
    """One split: greedy's answers and those of each variant, right or wrong in the items' order."""

    greedy: list[bool]
    right: dict[Variant, list[bool]]
    changed: dict[Variant, int]  # answers that were not greedy's text

    def best(self, rule: str) -> Variant:
        """Most right answers; of equals the weakest contrast, then the earliest loop."""
        own = [variant for variant in self.right if variant.rule == rule]
        return max(own, key=lambda each: (sum(self.right[each]), -each.strength, -(each.loop or 0)))


def measured(lab: Laboratory, split: Split, wanted: Sequence[Variant]) -> Measured:
    (greedy,) = lab.answers(GREEDY, split=split)
    was = greedy.right(lab.metric)
    contests = Contests.of(lab.traces(split))
    loops = candidate_loops(lab.loops)
    changed = {each: contests.changed(each.amateur, loops, each.strength) for each in wanted}
    right = {each: _regraded(lab, split, each, places, was) for each, places in changed.items()}
    return Measured(was, right, {each: len(places) for each, places in changed.items()})


def _regraded(lab: Laboratory, split: Split, variant: Variant, places: Sequence[int], was: list[bool]) -> list[bool]:
    """Right or wrong under the variant: as for greedy, except for the answers at `places`, which are generated."""
    task = lab.task(None, split)
    items = [task.items[place] for place in places]
    texts = _texts(lab, split, variant, places)
    grades = task.grade(items, texts) if items else []
    now = dict(zip(places, (each[lab.metric] for each in grades), strict=True))
    return [now.get(place, before) for place, before in enumerate(was)]


def _texts(lab: Laboratory, split: Split, variant: Variant, places: Sequence[int]) -> list[str]:
    """The variant's answers to these items, kept in the task's folder."""
    task = lab.task(None, split)
    items = [task.items[place] for place in places]
    report, begun = lab.tally.stage(f"{variant.slug} on {split}"), time.monotonic()
    with lab.opened(task) as store:
        kept = store.samples(variant.slug)
        missing = [item for item in items if item.id not in kept]
        found = len(items) - len(missing)
        report(Progress(found, len(items), found, 0.0))
        for batch in batches(lab.engine.lengths([item.prompt for item in missing]) if missing else [], lab.engine.batch_size):
            own = [missing[place] for place in batch]
            numbers = tuple(item_number(item.id) for item in own)
            request = CompletionRequest(task.max_new_tokens, task.stop, task.question, numbers)
            made = lab.engine.complete([item.prompt for item in own], method_of(variant), request)
            lines = [sample_line(item.id, each) for item, each in zip(own, made, strict=True)]
            store.add_samples(variant.slug, lines)
            kept.update({line["id"]: line for line in lines})
            done = sum(item.id in kept for item in items)
            report(Progress(done, len(items), found, time.monotonic() - begun))
    return [kept[item.id]["text"] for item in items]


# -- the element


def _auto(lab: Laboratory) -> Result:
    tuning = measured(lab, "tuning", variants(lab.loops))
    preset = Variant("fixed", lab.strength, lab.amateur)
    chosen = {rule: tuning.best(rule) for rule in (*FIXED, *CHOOSING)}
    test = measured(lab, "test", list(dict.fromkeys([preset, *chosen.values()])))
    fixed = test.right[chosen["fixed"]]
    columns = (
        Column("rule", "amateur"),
        Column("loop", "loop", "count"),
        Column("strength", "strength", "number"),
        Column("tuning", f"{lab.metric}, tuning split", "percent"),
        Column("accuracy", f"{lab.metric}, test split", "percent"),
        Column("difference", "Δ to greedy", "points"),
        Column("versus_fixed", "Δ to the fixed loop", "points"),
        Column("changed", "answers changed", "count"),
        Column("wrong_to_right", "wrong → right", "count"),
        Column("right_to_wrong", "right → wrong", "count"),
    )
    rows: list[tuple[Cell, ...]] = [
        ("none (greedy)", None, None, _share(tuning.greedy), _share(test.greedy), *(None,) * 5),
        _row("fixed (the preset)", preset, tuning, test, fixed),
        *(_row(rule, variant, tuning, test, fixed) for rule, variant in chosen.items()),
    ]
    notes = (
        "Loop and strength of each rule are those with the most right answers on the tuning split; the test split was read "
        "once. The fixed loop in the last differences is the one chosen so.",
        f"Candidates are loops {candidate_loops(lab.loops).start} to {candidate_loops(lab.loops).stop - 1} of {lab.loops}, "
        f"strengths {', '.join(f'{strength:g}' for strength in STRENGTHS)}.",
        "Where two tokens are plausible and the amateur ranks them otherwise than the expert, the contrast can only confirm "
        "the expert: `contest` can change a token only where three or more are plausible.",
    )
    return Result(Table(columns, tuple(rows)), _finding(chosen, tuning, test), notes=notes)


def _row(told: str, variant: Variant, tuning: Measured, test: Measured, fixed: list[bool]) -> tuple[Cell, ...]:
    now = test.right[variant]
    against = compare([test.greedy], [now])
    return (
        told,
        variant.loop,
        variant.strength,
        _share(tuning.right[variant]) if variant in tuning.right else None,
        _share(now),
        Estimate.difference(against),
        Estimate.difference(compare([fixed], [now])),
        test.changed[variant],
        against.wrong_to_right,
        against.right_to_wrong,
    )


def _share(right: list[bool]) -> Estimate:
    return Estimate.of(wilson(sum(right), len(right)))


def _finding(chosen: dict[str, Variant], tuning: Measured, test: Measured) -> Finding:
    """Of the rule that does best on the tuning split. To bring more it must be ahead of the fixed loop, and of greedy."""
    best = max((rule for rule in chosen if rule != "fixed"), key=lambda rule: sum(tuning.right[chosen[rule]]))
    now = test.right[chosen[best]]
    ahead = Estimate.difference(compare([test.right[chosen["fixed"]]], [now]))
    gained = Estimate.difference(compare([test.greedy], [now]))
    fixed = Estimate.difference(compare([test.greedy], [test.right[chosen["fixed"]]]))
    told = (
        f"The rule that does best on the tuning split, {best}, differs on the test split from the fixed loop by "
        f"{points(ahead)} and from greedy by {points(gained)}; the fixed loop differs from greedy by {points(fixed)}."
    )
    verdict = ahead.above(0) if gained.above(0) == "holds" else gained.above(0)  # doing less harm is not bringing more
    return Finding("choosing the contrasting loop during decoding brings more", verdict, told)


def _wanted(lab: Laboratory) -> Sequence[Wanted]:
    return (Wanted((GREEDY,)), replace(Wanted((GREEDY,)), split="tuning"))


ELEMENT = Element("Beyond the paper: an amateur chosen at every token", _auto, _wanted)
