"""Leaving the loop early, row by row, so that the loops are really saved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from loopcd.decoding import checks
from loopcd.decoding.rules import relative_change
from loopcd.models.slots import sent
from loopcd.models.stages import LoopedModel, LoopState, wide
from loopcd.models.staying import Staying

LOOKED_AFTER = 4  # loops between two looks at a device: one after every loop would keep it waiting


@dataclass(frozen=True)
class EarlyExit:
    """Stop a token's loops when the latent hardly changes any more, or when the model's own gate says so.

    `criterion="latent"`: at the first loop r ≥ `min_loops` with mean_j ‖h_r − h_(r−1)‖ / ‖h_r‖ < `threshold` (τ), the mean
    being over the tokens of the pass: a whole prompt leaves at once (`prefill_chunk_size` or not), a generated token by itself.
    `criterion="gate"` (Ouro): when the gate's cumulated exit probability reaches `threshold`. A threshold of 0 never leaves by
    the first criterion, and at the first loop by the second. `min_loops=None` is as few as the method allows: one more than
    its early loop where it has one (LoopCD, LoopGuidance), else 0.
    `exited` says how later tokens see, at later loops, one that left: by its `"last"` computed entry, or not
    (`"skip"`, the public Huginn code's default).
    """

    threshold: float = 0.03
    min_loops: int | None = None
    criterion: Literal["latent", "gate"] = "latent"
    exited: Literal["last", "skip"] = "last"

    def __post_init__(self) -> None:
        checks.number("threshold", self.threshold, 0)
        if self.min_loops is not None:
            checks.whole("min_loops", self.min_loops, 0)
        checks.one_of("criterion", self.criterion, ("latent", "gate"))
        checks.one_of("exited", self.exited, ("last", "skip"))

    def check(self, model: LoopedModel) -> None:
        if self.criterion == "gate" and not hasattr(model, "gate_logits"):
            raise ValueError(f'criterion="gate": {type(model).__name__} has no exit gate; use "latent"')
        implementation = model.config._attn_implementation or ""
        if self.exited == "skip" and "flash" in implementation:
            raise ValueError(f'exited="skip" needs masks that attn_implementation={implementation!r} does not take: use "sdpa"')


class Judge:
    """Says after each loop which rows leave; the gate's probability is cumulated over a pass."""

    def __init__(self, rule: EarlyExit, model: LoopedModel, counted: Tensor | None) -> None:
        self.rule, self.model = rule, model
        self.counted = counted  # [rows, time] bool, False for padding; None: every token counts
        self.staying: Tensor | None = None  # [rows, time], the gate's probability of still being in the loop

    def reached(self, before: LoopState, after: LoopState) -> Tensor | None:
        """[rows] bool, the rows that may leave, on the device; None: it is too early for any."""
        if self.rule.criterion == "gate":
            stop = torch.sigmoid(wide(self.model.gate_logits(after)))  # pyright: ignore[reportCallIssue]
            self.staying = 1 - stop if self.staying is None else self.staying * (1 - stop)
        if after.loop < (self.rule.min_loops or 0):
            return None
        if self.staying is not None:
            return 1 - self._mean(self.staying) >= self.rule.threshold
        return self._mean(relative_change(wide(before.hidden), wide(after.hidden))) < self.rule.threshold

    def _mean(self, per_token: Tensor) -> Tensor:
        if self.counted is None:
            return per_token[:, 0] if per_token.shape[1] == 1 else per_token.mean(dim=1)
        return per_token.masked_fill(~self.counted, 0).sum(dim=1) / self.counted.sum(dim=1)

    def keep(self, index: Tensor) -> None:
        self.counted = None if self.counted is None else self.counted[index]
        self.staying = None if self.staying is None else self.staying[index]


def may_leave(
    model: LoopedModel,
    rules: Sequence[EarlyExit | None],
    loops: Sequence[int],
    staying: Tensor,
    before: LoopState,
    after: LoopState,
) -> tuple[Tensor | None, Tensor]:
    """As `Judge.reached`, of tokens [tokens, 1, width] that each have a rule and a number of loops of their own; and `staying`
    [tokens], the gate's probability of still being in the loop, after this one."""
    reached = None
    for criterion in {rule.criterion for rule in rules if rule is not None}:
        limits = [2.0 if criterion == "gate" else 0.0] * len(rules)  # which are never reached
        for at, (rule, loop) in enumerate(zip(rules, loops, strict=True)):
            if rule is not None and rule.criterion == criterion and loop >= (rule.min_loops or 0):
                limits[at] = rule.threshold
        if criterion == "gate":
            stop = torch.sigmoid(wide(model.gate_logits(after)))[:, 0]  # pyright: ignore[reportCallIssue]
            staying = staying * (1 - stop)
            said = 1 - staying >= sent(torch.tensor(limits, dtype=stop.dtype), stop.device)
        elif any(limits):
            change = relative_change(wide(before.hidden), wide(after.hidden))[:, 0]
            said = change < sent(torch.tensor(limits, dtype=change.dtype), change.device)
        else:
            continue
        reached = said if reached is None else reached | said
    return reached, staying


class Leaving:
    """Which rows have left a pass, after how many loops, and with what.

    On a device that has to be waited for, the host looks only after every fourth loop. Rows that were to leave before ran on
    until then: they get the state with which they left, and what later loops wrote of them does not count.
    """

    def __init__(self, rule: EarlyExit, model: LoopedModel, state: LoopState, num_loops: int) -> None:
        self.judge, self.num_loops, self.whole = Judge(rule, model, _counted(state)), num_loops, state.tokens
        self.batch, self.device = state.hidden.shape[0], state.hidden.device
        self.every = 1 if self.device.type == "cpu" else LOOKED_AFTER
        self.rows = list(range(self.batch))  # those still in the loop
        self.ran = [num_loops] * self.batch
        self.ended: list[tuple[Tensor, list[int]]] = []  # with what [rows, time, width] which rows left
        self.unseen: list[tuple[LoopState, Tensor]] = []  # states, and which rows may leave with them

    def after(self, before: LoopState, state: LoopState) -> LoopState:
        """See a loop, and drop the rows that are known to have left; the state is that of those which stay, if any do."""
        last = state.loop == self.num_loops
        reached = None if last else self.judge.reached(before, state)
        if reached is not None:
            self.unseen.append((state, reached))
        if not self.unseen or (state.loop % self.every and not last):
            return state
        leavers = self._look()
        state = self._drop(leavers, state) if leavers else state
        self.unseen = []
        return state

    def _look(self) -> dict[int, list[int]]:
        """Which rows have left with which of the unseen states."""
        flags, found = [reached for _, reached in self.unseen], dict[int, list[int]]()
        told = [flags[0].tolist()] if len(flags) == 1 else torch.stack(flags).tolist()  # [loops][rows]
        for row, each in enumerate(zip(*told, strict=True)) if any(True in each for each in told) else ():
            if True in each:
                found.setdefault(each.index(True), []).append(row)
        return found

    def _drop(self, leavers: dict[int, list[int]], state: LoopState) -> LoopState:
        for at in sorted(leavers):
            self._leave(leavers[at], self.unseen[at][0], state.loop)
        gone = {row for rows in leavers.values() for row in rows}
        staying = [row for row in range(len(self.rows)) if row not in gone]
        self.rows = [self.rows[row] for row in staying]
        if not self.rows:
            return state
        index = sent(staying, self.device)
        self.judge.keep(index)
        extra, stay = None if state.extra is None else state.extra[index], state.tokens.keep(index, staying)
        cache: Any = Staying(self.whole, stay) if Staying.possible(self.whole, stay) else self.whole.cache
        return LoopState(state.hidden.index_select(0, index), state.loop, replace(stay, cache=cache), extra)

    def _leave(self, left: list[int], state: LoopState, entered: int) -> None:
        cache, rows = self.whole.cache, [self.rows[row] for row in left]
        for row in rows:
            self.ran[row] = state.loop
        every = len(rows) == state.hidden.shape[0]
        self.ended.append((state.hidden if every else state.hidden.index_select(0, sent(left, self.device)), rows))
        if cache is not None and (cache.reach is None or entered > state.loop):  # else it knows that tokens leave
            span = self.whole.span if len(rows) == self.batch else self.whole.span.keep(sent(rows, self.device), rows)
            cache.leave(span, state.loop, self.device, entered)

    def end(self, state: LoopState) -> tuple[LoopState, Tensor]:
        """The state with which every row ends, and the loops [batch] that each ran."""
        if not self.ended:
            return state, torch.tensor(self.ran)
        if self.rows:
            self.ended.append((state.hidden, self.rows))
        hidden = self.ended[0][0]
        if len(self.ended) > 1:
            rows = [row for _, some in self.ended for row in some]
            order = sent(sorted(range(self.batch), key=lambda at: rows[at]), self.device)
            hidden = torch.cat([hidden for hidden, _ in self.ended]).index_select(0, order)
        return LoopState(hidden, state.loop, self.whole), torch.tensor(self.ran)


def run_loops(
    model: LoopedModel,
    state: LoopState,
    num_loops: int,
    rule: EarlyExit | None = None,
    watch: Callable[[LoopState], None] | None = None,
) -> tuple[LoopState, Tensor]:
    """The state with which every row ends, and the loops [batch] that each row ran. `watch` sees every state.

    A row that leaves takes no further part: the next loops run for the remaining rows only.
    """
    leaving = None if rule is None else Leaving(rule, model, state, num_loops)
    batch = state.hidden.shape[0]
    while state.loop < num_loops:
        before, state = state, model.advance(state)
        if watch is not None:
            watch(state)
        if leaving is not None:
            state = leaving.after(before, state)
            if not leaving.rows:
                break
    return (state, torch.full((batch,), num_loops)) if leaving is None else leaving.end(state)


def _counted(state: LoopState) -> Tensor | None:
    """Which tokens of the pass are not padding: [rows, time], or None if all are, as a token that was just written is."""
    cache, span = state.tokens.cache, state.tokens.span
    if cache is None or cache.valid is None or span.time == 1:
        return None
    if span.columns is not None:
        return cache.valid.gather(1, span.columns)
    return cache.valid[:, span.start : span.stop]
