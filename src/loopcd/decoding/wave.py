"""Whether, how deep and how far a text runs ahead of itself in a wave; `ticks` does it.

As soon as a token has run the first loops, its early readout names the next one, which begins at once behind it. A token that
reaches the last loop is judged by the method's own rule: if it chooses what was begun behind it the wave goes on, if not
everything behind is dropped. A later token never overtakes an earlier one, so at every loop it sees all of the text before
it, and what survives is what plain decoding computes. On its way a token is looked at again, twice: what it says then is nearer
to the last word, and where it is another token than the one behind it, that is replaced at once.

With L loops of which a draft, and drafts that are right with probability p, a wave gives R = 1 / (1 − p) tokens until one is
refused: the first after L ticks, each of the others a ticks later. Looks on the way make that better where a refusal shows
before the last loop.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from loopcd.decoding.draft import AGAIN, CLEAR, DraftPlan, DraftReport, Probe, SelfDraft
from loopcd.decoding.passes import pass_costs
from loopcd.models.stages import LoopedModel, LoopState

if TYPE_CHECKING:
    from loopcd.decoding.flight import Unit

SHARE = 0.15  # of what is believed about drafts that the last one makes up
TRIED = 0.9  # what is believed after trials that were accepted
STEPS = 20  # in which chances are told apart


@dataclass
class WavePace:
    """How many tokens may be in flight: as many as pay, by how many drafts were right lately, and one while none do.

    Whether drafts are right is tried by one at a time; two in a row that were are followed by a whole wave. What fails is left
    alone for a while, each time for longer.
    """

    longest: int  # tokens in flight while nothing is refused
    gain: Callable[[int, float], float]  # over plain decoding, of so many tokens in flight at such a chance
    chance: float | None = None  # that a draft is right, a running mean; None: not trusted
    passed: int = 0  # trials in a row that were right
    wait: int = 0  # plain tokens until the next trial
    pause: int = 32
    _best: dict[int, int] = field(default_factory=dict)

    def width(self) -> int:
        """Tokens that may be in flight now; 1: nothing is drafted."""
        if self.wait > 0:
            return 1
        return 2 if self.chance is None else self._width(self.chance)

    def plain(self) -> None:
        """A token came of itself, with nothing behind it."""
        self.wait = max(0, self.wait - 1)

    def saw(self, right: bool) -> None:
        """The draft behind a token was judged."""
        if self.chance is None:
            self.passed = self.passed + 1 if right else 0
            if self.passed == 2:
                self.chance = TRIED
            elif not right:
                self._rest()
            return
        self.chance += SHARE * (right - self.chance)
        if self._width(self.chance) == 1:
            self.chance, self.passed = None, 0
            self._rest()
        elif self.chance > TRIED:
            self.pause = 32

    def _width(self, chance: float) -> int:
        step = round(chance * STEPS)
        if step not in self._best:
            gains = {width: self.gain(width, step / STEPS) for width in range(2, self.longest + 1)}
            best = max(gains, key=lambda width: gains[width])
            self._best[step] = best if gains[best] > 1 else 1
        return self._best[step]

    def _rest(self) -> None:
        self.wait, self.pause = self.pause, min(2 * self.pause, 1024)


_paces: "WeakKeyDictionary[LoopedModel, dict[tuple[int, int, int], WavePace]]" = WeakKeyDictionary()


def wave_pace(model: LoopedModel, num_loops: int, plan: DraftPlan, rows: int) -> WavePace:
    """What earlier texts taught about waves of this model, `rows` texts at a time."""
    known, key = _paces.setdefault(model, {}), (num_loops, plan.loops, rows)
    if key not in known:
        there = ref(model)  # what is kept for a model must not keep it

        def gain(width: int, chance: float) -> float:
            model = there()
            assert model is not None
            return DraftPlan(plan.loops, width, wave=True).gain(model, num_loops, chance, rows, pass_costs(model, rows))

        pace = WavePace(plan.length, gain)
        if plan.expected is not None and plan.expected > CLEAR:
            pace.chance = TRIED
        elif plan.expected is not None:
            pace.wait = pace.pause
        known[key] = pace
    return known[key]


class Wave:
    """The tokens of one text that are in flight, and whether the last of them names the next."""

    def __init__(self, draft: SelfDraft, model: LoopedModel, num_loops: int, rows: int) -> None:
        self.draft, self.model, self.num_loops, self.rows = draft, model, num_loops, rows
        self.units: list[Unit] = []  # the first was begun first
        self.report = DraftReport(0, 0)
        self.pace: WavePace | None = None  # None while there is no plan
        self.probe: Probe | None = None
        if num_loops > 1 or draft.loops is not None:
            self._plan()
            if self.pace is None:
                self.probe = Probe(draft, model, num_loops, 0)

    def _plan(self) -> None:
        plan = self.draft.plan(self.model, self.num_loops, self.rows, waves=True)
        if plan is not None:
            self.report.loops, self.report.length = plan.loops, plan.length
            self.pace = wave_pace(self.model, self.num_loops, plan, self.rows)

    def watch(self, state: LoopState) -> None:
        if self.probe is not None:
            self.probe.watch(state)

    def tip(self, room: int) -> "Unit | None":
        """The last token in flight, if it is to name the next one now; the text may get `room` more tokens."""
        if self.pace is None or not self.units or not self.report.loops <= self.units[-1].loop < self.num_loops:
            return None
        width = self.pace.width() if self.draft.fallback else self.report.length
        looping = sum(unit.loop < self.num_loops for unit in self.units)  # the first may stand before the gate
        return self.units[-1] if looping < width and len(self.units) < room else None

    def again(self) -> list["Unit"]:
        """The tokens in flight that are to be looked at again, with others behind them."""
        limits = [times * self.report.loops for times in AGAIN]
        left = [unit for unit in self.units[:-1] if unit.looks < len(AGAIN)]
        return [unit for unit in left if limits[unit.looks] <= unit.loop < self.num_loops]

    def named(self, unit: "Unit", token: int) -> "list[Unit] | None":
        """What a token that was looked at says the next one is; None if that is on its way, else the units that are not, behind
        which it is to be begun."""
        if unit not in self.units:  # it was dropped
            return None
        behind = self.units[self.units.index(unit) + 1 :]
        if behind:
            unit.looks += 1
            if behind[0].token == token:
                return None
            self.report.proposed += 1
        return behind

    def judge(self, token: int, over: bool) -> bool:
        """What was before all in flight has come out, and `token` follows it; whether that is what was begun behind it."""
        self.units = self.units[1:]  # none before the prompt's own
        if self.probe is not None and self.probe.add(token, last=over):
            self.probe = None
            self._plan()
        if not self.units:
            self.report.plain += 1
            if self.pace is not None:
                self.pace.plain()
            return False
        right = self.units[0].token == token
        self.report.proposed += 1
        self.report.accepted += right
        self.report.emitted += 1
        if not right or over:
            self.report.rounds, self.report.row_rounds = self.report.rounds + 1, self.report.row_rounds + 1
        if self.pace is not None and self.draft.fallback:
            self.pace.saw(right)
        return right and not over
