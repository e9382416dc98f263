"""Interventions in greedy's answers: tokens exchanged, and late decisions taken back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np

from loopcd.analysis import statistics
from loopcd.analysis.laboratory import Laboratory
from loopcd.decoding import Generation, Greedy, generate
from loopcd.decoding.texts import trim
from loopcd.evaluation.engine import using_threads
from loopcd.evaluation.plan import batches
from loopcd.evaluation.runner import Progress
from loopcd.evaluation.store import Store, sample_line
from loopcd.evaluation.task import Grades, Item, Task
from loopcd.tracing import LoopTrace

MOST = 5  # positions of an answer
BEST = 10  # candidates at a position
RUN = "reversion"  # the name that the resumed answers are kept under
Source = Literal["last", "peak"]  # the loop whose best tokens they are


# -- token replacement (Table 1): how far a right answer survives when some of its tokens are exchanged, the rest staying
#
# k = min(5, hard tokens, easy tokens) positions of one kind are drawn, and each gets a token drawn uniformly from the ten best
# of the last loop there, as the authors' code does (the paper's text says three); or, as a variant of theirs, from the ten best
# of the loop at which the margin of the final winner peaks. The best one is among them, so that some draws change nothing.


def replaced_answers(
    trace: LoopTrace, hard: np.ndarray, random: Random, source: Source = "last"
) -> dict[str, list[int]] | None:
    """The answer's tokens after replacing "easy" and after replacing "hard" positions; None where one kind is missing.

    `hard` is a mask over the answer's tokens.
    """
    kinds = {"easy": np.flatnonzero(~hard), "hard": np.flatnonzero(hard)}
    budget = min(MOST, *(len(positions) for positions in kinds.values()))
    if budget == 0:
        return None
    best = _best(trace, source)
    return {
        kind: _replaced(trace.token_ids.tolist(), best, random.sample(positions.tolist(), budget), random)
        for kind, positions in kinds.items()
    }


def _best(trace: LoopTrace, source: Source) -> np.ndarray:
    """[n, BEST] the candidates at each position; fewer where the vocabulary is that small."""
    if source == "last":
        return trace.top_ids[:, -1, :BEST]
    return trace.top_ids[np.arange(len(trace)), statistics.peak_loop(trace) - 1, :BEST]


def _replaced(tokens: list[int], best: np.ndarray, positions: Sequence[int], random: Random) -> list[int]:
    for position in positions:
        tokens[position] = int(random.choice(best[position]))
    return tokens


def answer_text(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Tokens as the text that is graded: without special tokens, up to the first stop string."""
    return trim(tokenizer.decode(list(tokens), skip_special_tokens=True), stop)[0]


# -- Late-Flip reversion (Table 8): take back what a late loop decided, and let greedy decoding go on from there
#
# At each Late-Flip position, one at a time, the last loop's winner is replaced by the most frequent other first choice of the
# latter half of the loops, and the rest is generated anew.


@dataclass(frozen=True)
class Reversion:
    """One changed token: of which item, at which position, and what stands there instead; `prefix` ends with it."""

    item: int
    position: int
    token: int
    prompt: tuple[int, ...]
    prefix: tuple[int, ...]


def reversions(trace: LoopTrace, item: int) -> list[Reversion]:
    """One for each Late-Flip position of an answer."""
    tokens, prompt = trace.token_ids.tolist(), tuple(trace.prompt_ids.tolist())
    return [
        Reversion(item, position, other, prompt, (*tokens[:position], other))
        for position, other in enumerate(statistics.late_alternatives(trace).tolist())
        if other >= 0
    ]


def resumed_texts(lab: Laboratory, task: Task, wanted: Sequence[Reversion]) -> list[str]:
    """What greedy decoding makes of each, as the text that is graded. Kept in the task's folder, and gone on with there."""
    ids = [f"{task.items[each.item].id}@{each.position}" for each in wanted]
    report = lab.tally.stage(f"reversions of {task.name}")
    with lab.opened(task) as store:
        kept = store.samples(RUN)
        found, begun = sum(name in kept for name in ids), time.monotonic()
        report(Progress(found, len(ids), found, 0.0))
        for places in batches([len(each.prompt) + len(each.prefix) for each in wanted], lab.engine.batch_size):
            if not all(ids[place] in kept for place in places):
                kept.update(_resume(lab, task, store, {ids[place]: wanted[place] for place in places}, set(kept)))
                done = sum(name in kept for name in ids)
                report(Progress(done, len(ids), found, time.monotonic() - begun))
    return [kept[name]["text"] for name in ids]


def _resume(
    lab: Laboratory, task: Task, store: Store, batch: dict[str, Reversion], kept: set[str]
) -> dict[str, dict[str, Any]]:
    """One batch, made as a whole; only what is missing is added."""
    room = {name: task.max_new_tokens - len(each.prefix) for name, each in batch.items()}
    ends = end_tokens(lab)
    going = {name: each for name, each in batch.items() if room[name] > 0 and each.token not in ends}
    continued = dict(zip(going, _generate(lab, task, list(going.values()), max(room.values())), strict=True))
    lines = {}
    for name, each in batch.items():
        tokens = [*each.prefix, *continued.get(name, [])[: max(0, room[name])]]
        text = answer_text(lab.engine.tokenizer, tokens, task.stop)
        reason = "length" if len(tokens) >= task.max_new_tokens else "stop"
        lines[name] = sample_line(name, Generation(text, tokens, reason, [], 0, 0))  # what the loops did is of no interest here
    store.add_samples(RUN, [line for name, line in lines.items() if name not in kept])
    return lines


def graded_in_rounds(task: Task, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
    """Grades of texts of which several may answer the same item: each item once in a round, as tasks expect."""
    rounds: list[dict[str, int]] = []  # of each: the place of an item's text
    for place, item in enumerate(items):
        free = next((each for each in rounds if item.id not in each), None)
        if free is None:
            rounds.append(free := {})
        free[item.id] = place
    grades: dict[int, Grades] = {}
    for places in (list(each.values()) for each in rounds):
        made = task.grade([items[place] for place in places], [texts[place] for place in places])
        grades.update(zip(places, made, strict=True))
    return [grades[place] for place in range(len(items))]


def end_tokens(lab: Laboratory) -> set[int]:
    """Tokens that end an answer, by the tokenizer or by the checkpoint; nothing is to be resumed after one."""
    config = lab.engine.model.generation_config
    listed = config.eos_token_id if config is not None else None
    ends = listed if isinstance(listed, list) else [listed]
    return {token for token in (*ends, lab.engine.tokenizer.eos_token_id) if token is not None}


def _generate(lab: Laboratory, task: Task, going: Sequence[Reversion], longest: int) -> list[list[int]]:
    if not going:
        return []
    with using_threads(lab.engine.threads):
        made = generate(
            lab.engine.model,
            lab.engine.tokenizer,
            [[*each.prompt, *each.prefix] for each in going],
            Greedy(),
            max_new_tokens=longest,
            stop=task.stop,
            batch_size=len(going),
            num_loops=lab.engine.num_loops,
        )
    return [each.token_ids for each in made]
