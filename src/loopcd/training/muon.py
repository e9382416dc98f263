"""Muon in float32: momentum, then the nearest orthogonal matrix by Newton-Schulz iteration.

torch has a Muon of its own, which iterates in bfloat16 and one matrix at a time. Without bfloat16 units that takes longer
than the whole of a tiny model's step; here matrices of one shape are iterated together in float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

# The quintic whose iteration drives all singular values towards 1 (Jordan et al., 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._step_together(parameters, **{name: group[name] for name in ("lr", "weight_decay", "momentum")})

    def _step_together(self, parameters: list[Tensor], lr: float, weight_decay: float, momentum: float) -> None:
        directions = []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if "velocity" not in state:
                state["velocity"] = torch.zeros_like(parameter)
            state["velocity"].lerp_(parameter.grad, 1 - momentum)
            directions.append(parameter.grad.lerp(state["velocity"], momentum))  # Nesterov's look ahead
        # An orthogonal update has a root mean square of 1/sqrt(longer side); AdamW's is about 0.2.
        scale = 0.2 * sqrt(max(parameters[0].shape))
        updates = orthogonalised(torch.stack(directions))
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * scale)


def orthogonalised(matrices: Tensor) -> Tensor:
    """About the nearest semi-orthogonal matrix to each of `matrices` [count, rows, columns]."""
    a, b, c = COEFFICIENTS
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    x = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # [count, short side, short side]
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide is matrices else x.mT
