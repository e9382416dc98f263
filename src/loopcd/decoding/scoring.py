"""From the final readout of a token to scores over the vocabulary.

A `Scorer` is a method at work on one generation: it watches the loops, then scores. It hands over its scores as `Scores`,
which name the few tokens that are possible; the whole vocabulary is filled in only where somebody needs it.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from loopcd.decoding import rules
from loopcd.decoding.early import EarlyLoop
from loopcd.decoding.reader import Reader, Reading
from loopcd.models.cache import LoopCache
from loopcd.models.slots import sent
from loopcd.models.stages import Coda, LoopedModel, LoopState, wide

USUAL = 8  # few positions have as many plausible tokens; so many are looked for at every step
MANY = 4  # from so many rows on, on a CPU, only the contested ones are looked at closely
FEW = 512  # up to so many plausible tokens, their rows of the head are gathered; beyond, the whole head is cheaper


@dataclass(frozen=True)
class Scores:
    """Scores of each row's possible tokens. `tokens` None: `values` cover the vocabulary in order."""

    values: Tensor  # [batch, n] float32
    tokens: Tensor | None  # [batch, n]
    vocab: int
    contested: Tensor  # [batch] bool, more than one token was plausible
    touched: Tensor  # [batch] bool, the rule intervened
    count: int = 1  # successive tokens of each text, which then take `count` rows

    def take(self, rows: Tensor) -> "Scores":
        """The scores of some rows."""
        tokens = None if self.tokens is None else self.tokens[rows]
        return Scores(self.values[rows], tokens, self.vocab, self.contested[rows], self.touched[rows])

    def best(self) -> Tensor:
        """[batch], the token of the highest score; of equal ones the smallest id, as an argmax over the vocabulary takes."""
        if self.tokens is None:
            return self.values.argmax(dim=-1)
        if self.tokens.shape[1] == 1:
            return self.tokens[:, 0]
        lower = self.values < self.values.amax(dim=-1, keepdim=True)  # none is where some are NaN: still a possible token
        return self.tokens.masked_fill(lower, self.vocab).amin(dim=-1)

    def full(self) -> Tensor:
        """[batch, vocab], −∞ for impossible tokens."""
        if self.tokens is None:
            return self.values
        full = self.values.new_full((self.values.shape[0], self.vocab), rules.IMPOSSIBLE)
        return full.scatter_(1, self.tokens, self.values)


class Scorer(Protocol):
    def watch(self, state: LoopState) -> None:
        """See the state after each loop."""
        ...

    def score(self, reading: Reading, cache: LoopCache) -> Scores: ...


class PlainScorer:
    """Greedy: the expert's own logits."""

    def watch(self, state: LoopState) -> None:
        pass

    def score(self, reading: Reading, cache: LoopCache) -> Scores:
        nowhere = torch.zeros(reading.logits.shape[0], dtype=torch.bool)
        return Scores(reading.logits, None, reading.logits.shape[1], nowhere, nowhere, reading.count)


class ContrastScorer:
    """Contrast with an amateur. What the amateur says is asked for only where a second token is plausible.

    That is exact: where one token is plausible it is the answer whatever the amateur says, and where several are, the
    amateur's normaliser cancels, so its logits of the plausible tokens are enough.
    """

    def __init__(self, model: LoopedModel, strength: float, plausibility: float, lazy: bool = True) -> None:
        self.model, self.strength, self.plausibility, self.lazy = model, strength, plausibility, lazy
        self.watched: list[EarlyLoop] = []  # the loops whose states are kept until a token is chosen
        self._plain: tuple[Tensor, Tensor] | None = None

    def watch(self, state: LoopState) -> None:
        for each in self.watched:
            each.watch(state)

    def amateur_hidden(self, reading: Reading, rows: Tensor) -> Tensor:
        """[n, width], what the head reads of the amateur in the n rows `rows` of the reading (rising, on the CPU)."""
        raise TypeError(f"{type(self).__name__} does not say who its amateur is")

    def settles(self, first: float, second: float) -> bool:
        """Whether the best logit is so far ahead of the second that nobody has to be asked, rounding errors included."""
        return self.lazy and first - second > 1e-6 * (1 + abs(first)) - math.log(self.plausibility)

    def forget(self) -> None:
        """A token was chosen: drop what was kept for it."""
        for each in self.watched:
            each.clear()

    def where(self, reading: Reading, contested: Tensor) -> Tensor:
        """[batch] bool on the CPU, the rows among the contested ones in which the rule may intervene."""
        return contested

    @property
    def _everywhere(self) -> bool:
        """Whether the rule intervenes in every contested row."""
        return self.strength > 0 and type(self).where is ContrastScorer.where

    def amateur_logits(self, hidden: Tensor, tokens: Tensor, expert: Tensor, allowed: Tensor) -> Tensor:
        """[n, k], the amateur's logits of these tokens from its `hidden` of the rows in which the rule intervenes; of those
        rows also what the expert says and which are plausible, all [n, k]."""
        return self._head(hidden, tokens)

    def score(self, reading: Reading, cache: LoopCache) -> Scores:
        scores = self._scores(reading)
        self.forget()
        return scores

    def _scores(self, reading: Reading) -> Scores:
        if self.lazy and reading.logits.is_cpu and len(reading.logits) >= MANY and not self._rounded(reading):
            return self._of_many(reading)
        expert, tokens = self._best(reading, USUAL)
        seen, most = self._seen(reading, expert)
        if seen.shape[1] == 1 or self._settled(seen, reading.going):
            values, nowhere = self._uncontested(expert)
            return Scores(values, tokens[:, :1], reading.logits.shape[1], nowhere, nowhere, reading.count)
        return self._contest(reading, expert, tokens, seen, most=most)

    def _of_many(self, reading: Reading) -> Scores:
        """Of many rows few are contested, and only these are looked at closely: the best tokens of all would cost more."""
        logits = reading.logits
        highest, best = logits.max(dim=-1, keepdim=True)
        contested = (logits >= highest + math.log(self.plausibility)).sum(dim=-1) > 1  # as `rules.plausible`
        if reading.going is not None:
            contested &= torch.tensor(reading.going)
        rows, (values, nowhere) = contested.nonzero().squeeze(1), self._uncontested(logits)
        if not len(rows):
            return Scores(values, best, logits.shape[1], nowhere, nowhere, reading.count)
        expert, tokens = self._best(reading, USUAL, rows)
        some = self._contest(reading, expert, tokens, expert, rows)
        assert some.tokens is not None
        # the other rows have one token, however often it is named
        values, tokens = values.repeat(1, some.values.shape[1]), best.repeat(1, some.values.shape[1])
        values[rows], tokens[rows] = some.values, some.tokens
        touched = contested if self._everywhere else torch.zeros_like(contested).index_put_((rows,), some.touched)
        return Scores(values, tokens, logits.shape[1], contested, touched, reading.count)

    def _best(self, reading: Reading, count: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The best tokens' logits and ids, [batch, k]; of some rows, [n, k]. A head that rounds to 16 bits makes many logits
        equal, and leaves little of a difference: so theirs are computed again, in 32."""
        logits = reading.logits if rows is None else reading.logits[rows]
        values, tokens = logits.topk(min(count, logits.shape[1]), dim=-1)
        if not self._rounded(reading):
            return values, tokens
        exact = self._head(reading.hidden, tokens).masked_fill(values == rules.IMPOSSIBLE, rules.IMPOSSIBLE)
        exact, order = exact.sort(dim=-1, descending=True)
        return exact, tokens.gather(1, order)

    def _seen(self, reading: Reading, expert: Tensor) -> tuple[Tensor, int | None]:
        """The best logits [batch, k] on the CPU. Where they come from elsewhere also how many tokens may be plausible at most,
        so that the device is waited for once; a CPU finds out only where it has to."""
        if expert.is_cpu:
            return expert, None
        border = expert[:, :1] + math.log(self.plausibility) - self._slack(reading, expert[:, :1])
        told = torch.cat([expert, (reading.logits >= border).sum(dim=-1, keepdim=True)], dim=1).cpu()
        return told[:, :-1], int(told[:, -1].max())

    def _rounded(self, reading: Reading) -> bool:
        """Whether rounding may hide differences that count; without a contrast the logits stay those that Greedy reads."""
        return self.strength > 0 and reading.dtype.itemsize < 4

    def _slack(self, reading: Reading, best: Tensor) -> Tensor | float:
        """How far rounding may have moved logits near the best one, [batch]."""
        return 2 * torch.finfo(reading.dtype).eps * best.abs() if self._rounded(reading) else 0.0

    def _settled(self, seen: Tensor, going: Sequence[bool] | None) -> bool:
        """Whether in every row that goes on the second of the best logits [batch, k] is implausible, by more than a rounding
        error.

        It only spares most steps the question; `rules.plausible` answers it wherever it is close.
        """
        asked = seen.tolist() if going is None else [row for row, asked in zip(seen.tolist(), going, strict=True) if asked]
        return all(self.settles(first, second) for first, second, *_ in asked)

    def _uncontested(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of each row's only token, and that no row is contested: the same at every step."""
        if self._plain is None or self._plain[0].shape[0] != like.shape[0]:
            rows = like.shape[0]
            self._plain = like.new_zeros(rows, 1), torch.zeros(rows, dtype=torch.bool)
        return self._plain

    def _contest(
        self,
        reading: Reading,
        expert: Tensor,
        tokens: Tensor,
        seen: Tensor,
        rows: Tensor | None = None,
        most: int | None = None,
    ) -> Scores:
        """The scores where in some row several tokens are plausible; the best ones' logits and ids are given, [batch, k], and
        what `_seen` says of them. With `rows`, all of that, and the scores, are of these contested rows only."""
        going = None if reading.going is None or rows is not None else torch.tensor(reading.going)
        expert, tokens = self._enough(reading, expert, tokens, rows, going, most)
        allowed = rules.plausible(expert, self.plausibility)
        if rows is not None and self._everywhere:  # each of these rows is contested, and asked about
            amateur = self.amateur_logits(self.amateur_hidden(reading, rows), tokens, expert, allowed)
            values, contested = rules.contrast(expert, amateur, self.strength, allowed), allowed[:, 1]
            return Scores(values, tokens, reading.logits.shape[1], contested, contested, reading.count)
        contested = (allowed if allowed.is_cpu else rules.plausible(seen, self.plausibility))[:, 1]  # on the CPU
        if going is not None:  # nobody reads what comes after a text's end
            contested = contested & going
            allowed[:, 1:] &= sent(going, allowed.device)[:, None]
        touched = self._touched(reading, contested, rows)
        amateur = torch.zeros_like(expert)
        asked = touched if self.lazy else torch.ones_like(touched)
        if self.strength > 0 and bool(asked.any()):
            some = asked.nonzero().squeeze(1)
            hidden, at = self.amateur_hidden(reading, some if rows is None else rows[some]), sent(some, expert.device)
            amateur[at] = self.amateur_logits(hidden, tokens[at], expert[at], allowed[at])
        values = rules.contrast(expert, amateur, self.strength, allowed)
        return Scores(values, tokens, reading.logits.shape[1], contested, touched, reading.count)

    def _enough(
        self, reading: Reading, expert: Tensor, tokens: Tensor, rows: Tensor | None, going: Tensor | None, most: int | None
    ) -> tuple[Tensor, Tensor]:
        """So many of the best tokens, logits and ids [batch, k], that all plausible ones are among them, `most` at most."""
        count, border = USUAL, math.log(self.plausibility)
        while count < reading.logits.shape[1]:
            if most is None:
                last = expert[:, -1] >= expert[:, 0] + border - self._slack(reading, expert[:, 0])
                more = bool((last if going is None else last & going).any())
            else:
                more = count < most
            if not more:
                break
            count *= 8
            expert, tokens = self._best(reading, count, rows)
        return expert, tokens

    def _touched(self, reading: Reading, contested: Tensor, rows: Tensor | None) -> Tensor:
        if rows is None:
            return self.where(reading, contested)
        whole = torch.zeros(len(reading.logits), dtype=torch.bool).index_put_((rows,), contested)
        return self.where(reading, whole)[rows]

    def _head(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """[n, k], logits of some tokens in at least 32 bits."""
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self._head(hidden.to(self.model.dtype), tokens)
        if tokens.shape[1] <= FEW:
            return self.model.head(wide(hidden), tokens)
        if hidden.dtype.itemsize < 4:
            return torch.cat([self.model.head(hidden.float(), part) for part in tokens.split(FEW, dim=1)], dim=1)
        return self.model.head(hidden).gather(1, tokens)


class LoopScorer(ContrastScorer):
    """The amateur is the model stopped at an early loop."""

    def __init__(self, model: LoopedModel, amateur_loop: int, coda: Coda, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.early = EarlyLoop(model, amateur_loop, coda)
        self.watched = [self.early] if self.strength > 0 else []

    def alike(self) -> Hashable:
        """What scorers of different texts have in common that can score together; None: each has to score alone."""
        return (type(self), *self.early.alike(), self.strength, self.plausibility, self.lazy) if self.strength > 0 else None

    def amateur_hidden(self, reading: Reading, rows: Tensor) -> Tensor:
        return self.early.read(reading, rows)


class LoopGuidanceScorer:
    """Away from what an early loop says, at every position and for every token."""

    def __init__(self, model: LoopedModel, early_loop: int, coda: Coda, weight: float, adaptive: bool) -> None:
        self.model, self.weight, self.adaptive = model, weight, adaptive
        self.early = EarlyLoop(model, early_loop, coda)

    def alike(self) -> Hashable:
        """As in `LoopScorer`."""
        return (type(self), *self.early.alike(), self.weight, self.adaptive) if self.weight > 0 else None

    def watch(self, state: LoopState) -> None:
        if self.weight > 0:
            self.early.watch(state)

    def score(self, reading: Reading, cache: LoopCache) -> Scores:
        logits = reading.logits
        nowhere = torch.zeros(len(logits), dtype=torch.bool)
        if self.weight == 0 or logits.shape[1] == 1:
            return Scores(logits, None, logits.shape[1], nowhere, nowhere, reading.count)
        early = wide(self.model.head(self.early.read(reading, torch.arange(len(logits)))))
        self.early.clear()
        weight = rules.adaptive_weight(logits, self.weight) if self.adaptive else self.weight
        values = rules.loop_guidance(logits, early, weight).masked_fill(logits == rules.IMPOSSIBLE, rules.IMPOSSIBLE)
        return Scores(values, None, logits.shape[1], nowhere, ~nowhere, reading.count)


def seeded(seed: int, number: int) -> torch.Generator:
    """A generator on the CPU for each number that draws under one seed are told apart by."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)


class NoiseScorer(ContrastScorer):
    """The amateur is the head on the expert's readout with noise added."""

    def __init__(self, model: LoopedModel, noise: float, seed: int, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.noise, self.seed, self.step = noise, seed, 1

    def forget(self) -> None:
        self.step += 1

    def amateur_hidden(self, reading: Reading, rows: Tensor) -> Tensor:
        # the draw belongs to the step, so that it depends neither on the other rows nor on how often it was asked for
        epsilon = torch.randn(reading.hidden.shape[1], generator=seeded(self.seed, self.step))
        return rules.noisy(reading.hidden[rows.to(reading.hidden.device)], self.noise, epsilon.to(reading.hidden))


class GuidedScorer:
    """MTI: where the expert is uncertain, guidance away from what it says after the negative prompt."""

    def __init__(self, reader: Reader, negative: Sequence[int], threshold: float, weight: float, plausibility: float) -> None:
        self.reader, self.negative = reader, list(negative)
        self.threshold, self.weight, self.plausibility = threshold, weight, plausibility

    def watch(self, state: LoopState) -> None:
        pass

    def score(self, reading: Reading, cache: LoopCache) -> Scores:
        logits = reading.logits
        allowed = rules.plausible(logits, self.plausibility)
        contested = allowed.sum(dim=-1) > 1
        touched = rules.entropy(logits) > self.threshold
        values = logits.log_softmax(dim=-1).masked_fill(~allowed, rules.IMPOSSIBLE)
        if bool(touched.any()):
            away = self._negative_logits(cache, logits)
            values = torch.where(touched[:, None], rules.guidance(logits, away, self.weight, allowed), values)
        return Scores(values, None, logits.shape[1], contested.cpu(), touched.cpu())

    def _negative_logits(self, cache: LoopCache, like: Tensor) -> Tensor:
        """Read the negative prompt behind the text on the same cache, then take it off again."""
        prompt = torch.tensor([self.negative], device=like.device).expand(like.shape[0], -1)
        reading, _ = self.reader.read(prompt)
        cache.crop(-len(self.negative))
        return reading.logits
