"""What is on its way in the engine of ticks: texts, the tokens of theirs that are in the loops, and prompts that are read."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopcd.decoding.exits import Judge
from loopcd.decoding.loop import Job, Rows, Step
from loopcd.decoding.reader import Reader, Reading
from loopcd.decoding.scoring import PlainScorer, Scorer, Scores
from loopcd.decoding.texts import Stopper
from loopcd.decoding.wave import Wave
from loopcd.models.cache import LoopCache
from loopcd.models.places import Gathered, PlaceCache, Places, seated
from loopcd.models.prompts import Prompts
from loopcd.models.slots import Span, sent
from loopcd.models.stages import LoopedModel, LoopState, Pass, joined, rows_of

if TYPE_CHECKING:
    from loopcd.decoding.methods import Method


ALIKE = 0.75  # of the longest prompt's length: what is shorter is not padded to it
AT_ONCE = 4096  # tokens of prompts that are read in one pass


class Row:
    """A text: a job of one prompt, the method that continues it, and what was made so far."""

    def __init__(self, method: "Method", job: Job) -> None:
        seeds = job.init_seed
        if isinstance(seeds, Sequence):  # texts are told apart by them, so they have to be hashable
            job = replace(job, init_seed=seeds[0] if len(seeds) == 1 else tuple(seeds))
        self.method, self.job = method, job
        self.tokens: list[int] = []
        self.loops: list[int] = []
        self.contested: list[bool] = []
        self.touched: list[bool] = []
        self.error: Exception | None = None
        self.sound = True  # whether all its readouts were finite
        self.wave: Wave | None = None  # where it runs ahead of itself
        self.follows = False  # whether the last token was begun before it was known

    def take_place(self, places: Places, place: int) -> None:
        exited = "last" if self.method.exit is None else self.method.exit.exited
        given, self.place = self.job.cache, place
        self.cache: LoopCache = PlaceCache(places, place, exited, self.job.limit) if given is None else given
        if given is not None:
            seated(given, places, place)
        self.reader: Reader = replace(self.job, cache=self.cache).reader(self.method)
        self.scorer: Scorer = self.method.scorer(self.reader, self.job.tokenizer)
        self.stopper = Stopper(self.job.stopping, self.job.input_ids)
        # the expert's best token may be all that is needed; but a coda of the amateur's own has to see every token
        own_coda = getattr(self.method, "coda", None) == "own" and not self.job.model.pointwise_readout
        self.simple = self.job.sampling.plain and not self.job.sampling.parts[0] and not own_coda
        if self.method.draft is not None:
            self.wave = Wave(self.method.draft, self.reader.model, self.reader.num_loops, places.rows)
        self.exit, self._scores = self.reader.exit, not isinstance(self.scorer, PlainScorer)

    @property
    def prompt_tokens(self) -> int:
        return self.job.input_ids.shape[1]

    @property
    def watches(self) -> bool:
        """Whether anybody wants to see the states of its tokens."""
        return self._scores or (self.wave is not None and self.wave.probe is not None)

    def watch(self, state: LoopState) -> None:
        self.scorer.watch(state)
        if self.wave is not None:
            self.wave.watch(state)

    def room(self, wave: Wave) -> int:
        """Tokens that may be in flight by what is left of the text and of the context."""
        return min(self.stopper.remaining([True]), self.reader.model.max_context - self.cache.length + len(wave.units))

    def add(self, token: int, loops: int, contested: bool, touched: bool) -> bool:
        """Take the next token; whether the text ends by it."""
        self.tokens.append(token)
        self.loops.append(loops)
        self.contested.append(contested)
        self.touched.append(touched)
        over = self.stopper.add(0, token)
        self.follows = self.wave is not None and self.wave.judge(token, over)
        return over

    def step(self, at: int) -> Step:
        """The token at index `at` of what was made, in the form of a batch of one row."""
        made: tuple[Sequence[int], ...] = (self.tokens, self.loops, self.contested, self.touched)
        token, loops, contested, touched = (torch.tensor([each[at]]) for each in made)
        drafts = None if self.wave is None else self.wave.report
        return Step(token, torch.tensor([True]), loops, contested, touched, drafts=drafts)

    def rows(self) -> Rows:
        """What was made, in the form of a batch of one row."""
        tokens, loops, contested, touched = (
            torch.tensor([each]) for each in (self.tokens, self.loops, self.contested, self.touched)
        )
        return Rows(tokens, torch.ones_like(tokens, dtype=torch.bool), loops, contested, touched)


@dataclass(eq=False)
class Unit:
    """A token in flight: the last one of its text, or one that is believed to follow."""

    row: Row
    span: Span  # its column in the text's own cache
    token: int
    loop: int = 0  # loops that it has run
    looks: int = 0  # at what it says, beside the one that named the next
    trail: list[tuple[Tensor, int]] = field(default_factory=list)  # the states after each loop, and which of them is its own

    @property
    def column(self) -> int:
        return self.span.start


@dataclass(eq=False)
class Prompt:
    """Prompts on their way through the loops, in one pass: the longest has no padding behind it."""

    rows: list[Row]
    state: LoopState  # [rows, time, width]
    judge: Judge | None

    def keep(self, at: Sequence[int]) -> "Prompt | None":
        """Only these of them; the judge is theirs from now on."""
        if not at:
            return None
        if len(at) == len(self.rows):
            return self
        index = torch.tensor(at, device=self.state.hidden.device)
        if self.judge is not None:
            self.judge.keep(index)
        return Prompt([self.rows[each] for each in at], self.state.keep(index), self.judge)

    def without(self, row: Row) -> "Prompt | None":
        return self.keep([at for at, each in enumerate(self.rows) if each is not row])

    @property
    def alone(self) -> bool:
        """Whether this was one prompt from the beginning."""
        return self.state.tokens.cache is self.rows[0].cache

    def own(self, at: int) -> LoopState:
        """The state of one of them as it is alone."""
        if self.alone:
            return self.state
        cache, time = self.rows[at].cache, self.rows[at].prompt_tokens
        assert cache.span is not None
        rotary = rows_of(self.state.tokens.rotary, torch.tensor([at], device=self.state.hidden.device))
        alone = Pass(cache.span, cache, None, _first(rotary, time))
        return LoopState(self.state.hidden[at : at + 1, :time], self.state.loop, alone)

    def last(self, read: Tensor) -> Tensor:
        """[rows, width], of readouts [rows, time, width] those of each one's last token."""
        if self.alone:
            return read[:, -1]
        ends = [row.prompt_tokens - 1 for row in self.rows]
        return read[torch.arange(len(ends), device=read.device), torch.tensor(ends, device=read.device)]


def _first(values: Any, time: int) -> Any:
    """The first tokens of a tensor [rows, time, ...], or of a tuple of such."""
    return tuple(_first(each, time) for each in values) if isinstance(values, tuple) else values[:, :time]


def read_together(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """New texts by prompts that can be read in one pass: of like length, beginning alike, leaving by the same rule."""
    alike: dict[Any, list[Row]] = {}
    for row in rows:
        told = row.job.token_type_ids is not None or bool(row.job.model.prompt_options(row.job.input_ids))
        special = row.cache.length > 0 or told
        alike.setdefault(row if special else (row.reader.exit, row.job.init_seed), []).append(row)
    for some in alike.values():
        group: list[Row] = []
        for row in sorted(some, key=lambda row: -row.prompt_tokens):
            longest = group[0].prompt_tokens if group else 0
            if group and (row.prompt_tokens < ALIKE * longest or longest * (len(group) + 1) > AT_ONCE):
                yield group
                group = []
            group.append(row)
        yield group


def begun(rows: list[Row], places: Places) -> Prompt:
    """Their prompts before any loop, in one pass."""
    first, counted = rows[0], None
    if len(rows) == 1:
        state = first.reader.begin(first.job.input_ids[:, first.cache.length :])
    else:
        state, counted = _begin_some(rows, first.reader.model, places)
    rule = first.reader.exit
    return Prompt(rows, state, None if rule is None else Judge(rule, first.reader.model, counted))


def _begin_some(rows: Sequence[Row], model: LoopedModel, places: Places) -> tuple[LoopState, Tensor | None]:
    """The state of several prompts, and which of its tokens [rows, time] are theirs (None: all)."""
    device, lengths = model.device, [row.prompt_tokens for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.long, device=device)
    for at, row in enumerate(rows):
        ids[at, : lengths[at]] = row.job.input_ids[0]
    cache: Any = Prompts(places, [row.place for row in rows], device)
    state = model.begin(ids, cache, init_seed=rows[0].job.init_seed)
    for at, row in enumerate(rows):
        span = row.cache.open(1, lengths[at], device=device, num_loops=places.num_loops)
        if cache.ids is not None:
            row.cache.remember(span, ids[at : at + 1, : lengths[at]])
    if min(lengths) == max(lengths):
        return state, None
    return state, torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device)[:, None]


@dataclass(eq=False)
class Flying:
    """Tokens at whatever loops, and their states as one; it says loop 0, each unit knows its own."""

    units: list[Unit]
    state: LoopState  # [units, 1, width]
    staying: Tensor  # [units], the exit gate's probability of still being in the loop
    bound: bool = False  # whether the state has for a cache what these units have

    def keep(self, order: Sequence[int]) -> "Flying | None":
        """Only these units, in this order."""
        if not order:
            return None
        if list(order) == list(range(len(self.units))):
            return self
        index, state, old = sent(order, self.state.hidden.device), self.state, self.state.tokens
        injected, extra = (None if each is None else each.index_select(0, index) for each in (old.injected, state.extra))
        tokens = Pass(Span(len(order), 0, 1), old.cache, None, rows_of(old.rotary, index), injected, old.length)
        kept = LoopState(state.hidden.index_select(0, index), state.loop, tokens, extra)
        return Flying([self.units[at] for at in order], kept, self.staying.index_select(0, index))

    def only(self, units: Collection[Unit]) -> "Flying":
        """Those of these, at least one."""
        kept = self.keep([at for at, unit in enumerate(self.units) if unit in units])
        assert kept is not None
        return kept

    def without(self, row: Row) -> "Flying | None":
        return self.keep([at for at, unit in enumerate(self.units) if unit.row is not row])


def joined_flights(parts: Sequence[Flying], key: Callable[[Unit], Any]) -> Flying:
    """All units of these, sorted by `key`."""
    units = [unit for part in parts for unit in part.units]
    whole = Flying(units, stacked([part.state for part in parts]), torch.cat([part.staying for part in parts]))
    kept = whole.keep(sorted(range(len(units)), key=lambda at: key(units[at])))
    assert kept is not None
    return kept


def stacked(states: Sequence[LoopState]) -> LoopState:
    """States [rows, 1, width] of different texts as one."""
    if len(states) == 1:
        return states[0]
    tokens = replace(
        states[0].tokens,
        span=Span(sum(len(state.hidden) for state in states), 0, 1),
        rotary=joined([state.tokens.rotary for state in states], along=0),
        injected=joined([state.tokens.injected for state in states], along=0),
        mask=None,
    )
    hidden, extra = (joined([getattr(state, name) for state in states], along=0) for name in ("hidden", "extra"))
    return LoopState(hidden, states[0].loop, tokens, extra)


def show_trail(unit: Unit, rotary: Any, at: int) -> None:
    """Let the text's scorer see the states that its token went through; the positions are at `at` of `rotary`."""
    if not unit.trail:
        return
    index = torch.tensor([at], device=unit.trail[0][0].device)
    tokens = Pass(unit.span, unit.row.cache, None, rows_of(rotary, index))
    for loop, (hidden, place) in enumerate(unit.trail, start=1):
        unit.row.watch(LoopState(hidden[place : place + 1], loop, tokens))


def score_together(came: Sequence[tuple[Unit, Any, int]], reading: Reading, places: Places) -> Scores:
    """The scores of texts whose scorers are alike: of each its token, and where in `rotary` its position is."""
    units, (first, rotary, _) = [unit for unit, _, _ in came], came[0]
    device, scorer = first.trail[0][0].device, first.row.scorer
    columns = [unit.column for unit in units]
    start, last = min(columns), max(columns)
    differing = torch.tensor(columns, device=device)[:, None] if start < last else None
    index = torch.tensor([at for *_, at in came], device=device)
    gathered = Gathered(places, [unit.row.place for unit in units])
    span = Span(len(units), start, last + 1, differing)
    tokens = Pass(span, gathered, None, rows_of(rotary, index))  # pyright: ignore[reportArgumentType]
    loop = scorer.early.loop  # pyright: ignore[reportAttributeAccessIssue]
    own = [unit.trail[loop - 1] for unit in units]
    hidden = torch.cat([states[place : place + 1] for states, place in own])
    scorer.watch(LoopState(hidden, loop, tokens))
    return scorer.score(reading, first.row.cache)
