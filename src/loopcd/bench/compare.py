"""A run against an earlier one: which ratios changed by more than they scatter."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loopcd.bench.timing import Spread

# These depend on how busy the machine was; only ratios are compared.
ABSOLUTE = {"bandwidth", "tokens_per_cpu_second", "tokens_per_second"}


@dataclass(frozen=True)
class Change:
    """One figure in both runs. `flagged`: each run's median lies outside the other's spread."""

    name: str
    before: Spread
    now: Spread

    @property
    def change(self) -> float:
        return self.now.median / self.before.median - 1

    @property
    def flagged(self) -> bool:
        pairs = ((self.now.median, self.before), (self.before.median, self.now))
        return all(not spread.low <= median <= spread.high for median, spread in pairs)


def compare(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[Change]:
    """All ratios that both runs hold, in the order of the new run."""
    old = dict(spreads(before))
    found = [Change(name, old[name], spread) for name, spread in spreads(now) if name in old]
    if not found:
        raise ValueError("the two runs have no ratio in common: compare runs of the same parts and models")
    return found


def spreads(run: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Spread]]:
    """(name, spread) of every ratio in a run, wherever it stands."""
    if {"median", "low", "high"} <= set(run):
        yield " / ".join(path), Spread(run["median"], run["low"], run["high"])
        return
    for key, value in run.items():
        if key in ABSOLUTE:
            continue
        if isinstance(value, Mapping):
            yield from spreads(value, (*path, str(key)))
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                if isinstance(entry, Mapping):
                    yield from spreads(entry, (*path, str(key), _label(entry, index)))


def _label(entry: Mapping[str, Any], index: int) -> str:
    """A decode cell is known by its batch and context, whatever its place."""
    if "batch" in entry and "context" in entry:
        return f"batch {entry['batch']}, context {entry['context']}"
    return str(index)
