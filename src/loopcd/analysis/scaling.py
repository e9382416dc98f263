"""The paper's loop numbers are of Huginn's 32 loops. Here is what they become on a model with another number."""

from __future__ import annotations

PAPER_LOOPS = 32
AMATEURS = (4, 8, 12, 16, 20)  # Table 4
FEWEST_EXIT_LOOPS = 15  # early exit with LoopCD leaves only after so many
FEW = 6  # loops up to which every loop is tried as the amateur
PEAK = (6, 12)  # Figure 5: where hard tokens peak
GOOD_DEPTH = (0.15, 0.30)  # of the depth, "often works well"


def scaled(loop: int, loops: int) -> int:
    """A loop of the paper's 32 at the same share of the depth, halves rounded up."""
    return max(1, int(loop * loops / PAPER_LOOPS + 0.5))


def amateur_sweep(loops: int) -> tuple[int, ...]:
    """The amateurs of Table 4 at the same shares of the depth; all of them where there are few loops."""
    if loops <= FEW:
        return tuple(range(1, loops))
    return tuple(sorted({min(scaled(loop, loops), loops - 1) for loop in AMATEURS}))


def fewest_exit_loops(loops: int, amateur: int) -> int:
    """Loops that early exit with LoopCD runs in any case: the paper's share of the depth, and more than the amateur."""
    return min(loops, max(scaled(FEWEST_EXIT_LOOPS, loops), amateur + 1))


def sweep_note(loops: int) -> str:
    """How Table 4's amateurs were carried over, in words."""
    if loops == PAPER_LOOPS:
        return "The amateurs are the paper's."
    tried = f"The paper tries {_listed(AMATEURS)} of {PAPER_LOOPS} loops;"
    if loops <= FEW:
        return f"{tried} of {loops} loops every one but the last is tried."
    return f"{tried} at the same shares of {loops} loops these are {_listed(amateur_sweep(loops))}."


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
