"""From what the head reads after every loop to the numbers of a trace, some positions at a time.

The logits of a block of positions live while they are reduced, so what is needed beside the model grows with the trace and
not with the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loopcd.decoding import checks, rules
from loopcd.models import LoopedModel
from loopcd.models.presets import preset
from loopcd.models.stages import Coda, checked_loops
from loopcd.tracing.trace import MOST_PLAUSIBLE

BLOCK = 1 << 20  # logits that are held at once


@dataclass(frozen=True)
class TraceSetting:
    """What a trace is made for: loops, amateur, strength λ, plausibility α, how many top tokens are kept, and what early
    loops see of the text through a coda."""

    num_loops: int
    amateur_loop: int
    strength: float
    plausibility: float
    top: int
    coda: Coda = "shared"

    @classmethod
    def of(
        cls,
        model: LoopedModel,
        num_loops: int | None = None,
        amateur_loop: int | None = None,
        strength: float | None = None,
        plausibility: float = 0.1,
        top: int = 6,
        coda: Coda = "shared",
    ) -> "TraceSetting":
        """The model's own where nothing is given."""
        loops = checked_loops(num_loops, model.num_loops)
        default = preset(model, loops)
        amateur = default.amateur_loop if amateur_loop is None else amateur_loop
        checks.whole("amateur_loop", amateur)
        if not 1 <= amateur <= loops:
            raise ValueError(f"amateur_loop={amateur}: from 1 to {loops}, the loops that are run")
        strength = default.strength if strength is None else strength
        checks.number("strength", strength, 0)
        checks.share("plausibility", plausibility)
        checks.whole("top", top, 1)
        return cls(loops, amateur, float(strength), float(plausibility), min(top, model.config.vocab_size), coda)


def measured(
    model: LoopedModel, readouts: Sequence[Tensor], changes: Sequence[Tensor], setting: TraceSetting
) -> dict[str, np.ndarray]:
    """The arrays of a LoopTrace for N positions, by name.

    `readouts`: what the head reads there after each loop, each [N, width]; `changes`: of the latents, each [N].
    """
    size = max(1, BLOCK // model.config.vocab_size)
    blocks = [
        _block(model, [each[start : start + size] for each in readouts], setting) for start in range(0, len(changes[0]), size)
    ]
    arrays = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    arrays["change"] = torch.stack(list(changes), dim=1).float().cpu().numpy()
    return arrays


def _block(model: LoopedModel, readouts: Sequence[Tensor], setting: TraceSetting) -> dict[str, np.ndarray]:
    expert = model.head(readouts[-1]).float()  # [rows, vocab]
    if not bool(torch.isfinite(expert).all()):
        raise ValueError("the model's logits hold numbers that are not finite: nothing can be traced")
    count, rows, ids = _plausible(expert, setting.plausibility)
    winner = ids[count.clamp(max=MOST_PLAUSIBLE).cumsum(0) - count.clamp(max=MOST_PLAUSIBLE)]  # the first of each set
    by_loop: dict[str, list[Tensor]] = {}
    unconstrained = winner
    for loop, hidden in enumerate(readouts, start=1):
        logits = expert if loop == len(readouts) else model.head(hidden).float()
        for name, values in _seen(logits, winner, setting.top).items():
            by_loop.setdefault(name, []).append(values)
        by_loop.setdefault("plausible_logits", []).append(logits[rows, ids])
        if loop == setting.amateur_loop:
            unconstrained = _unconstrained(expert - setting.strength * logits, winner)
    ints = {"winner": winner, "unconstrained": unconstrained, "plausible_count": count, "plausible_ids": ids}
    arrays = {name: torch.stack(values, dim=1).cpu().numpy() for name, values in by_loop.items()}
    arrays["top_ids"] = arrays["top_ids"].astype(np.int32)
    return arrays | {name: values.cpu().numpy().astype(np.int32) for name, values in ints.items()}


def _plausible(expert: Tensor, plausibility: float) -> tuple[Tensor, Tensor, Tensor]:
    """The size of each row's plausible set [rows]; the row and the id of its tokens [S], best first, at most 64 a row."""
    allowed = rules.plausible(expert, plausibility)
    count = allowed.sum(dim=-1)  # [rows]
    rows, ids = allowed.nonzero(as_tuple=True)  # by row, then by id, which stable sorting keeps among equals
    order = expert[rows, ids].argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]
    rank = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[rows]
    order = order[rank < MOST_PLAUSIBLE]
    return count, rows[order], ids[order]


def _seen(logits: Tensor, winner: Tensor, top: int) -> dict[str, Tensor]:
    """What one loop's logits [rows, vocab] say, of each row."""
    best = logits.topk(min(max(top, 2), logits.shape[1]), dim=-1)
    ahead = best.indices[:, 0] == winner
    return {
        "logit": logits.gather(1, winner[:, None]).squeeze(1),
        "runner_up": torch.where(ahead, best.values[:, min(1, best.values.shape[1] - 1)], best.values[:, 0]),
        "log_norm": logits.logsumexp(dim=-1),
        "entropy": rules.entropy(logits),
        "top_ids": best.indices[:, :top],
        "top_logits": best.values[:, :top],
    }


def _unconstrained(contrasted: Tensor, winner: Tensor) -> Tensor:
    own = contrasted.gather(1, winner[:, None]).squeeze(1)
    best = contrasted.max(dim=-1)
    return torch.where(own >= best.values, winner, best.indices)
