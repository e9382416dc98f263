"""Progress over several stages as one number, so that the time left is that of everything."""

from __future__ import annotations

from collections.abc import Callable

from loopcd.evaluation.runner import Progress, Report


class Tally:
    """Adds up what the stages report. `expected` answers are known beforehand; more are added as they turn out to be needed."""

    def __init__(self, report: Report | None = None, expected: int = 0) -> None:
        self.report = report or (lambda _: None)
        self.expected = expected
        self.stages: dict[str, Progress] = {}

    def stage(self, name: str, planned: bool = False) -> Callable[[Progress], None]:
        """What a stage reports to. Unless it was planned, one that finds everything done has nothing to add."""

        def reported(state: Progress) -> None:
            if planned or state.found < state.total:
                self.stages[name] = state
                self.report(self.state())

        return reported

    def state(self) -> Progress:
        states = self.stages.values()
        total = max(self.expected, sum(state.total for state in states))
        done, found = sum(state.done for state in states), sum(state.found for state in states)
        return Progress(done, total, found, sum(state.seconds for state in states))
