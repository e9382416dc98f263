"""Muon, the two optimisers behind one rate, and the rate's schedule."""

from collections import defaultdict
from collections.abc import Iterable
from math import cos, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from loopcd.models import LoopedModel
from loopcd.training.recipes import Optimiser

# The quintic whose iteration drives all singular values towards 1 (Jordan et al., 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon in float32: momentum, then the nearest orthogonal matrix by Newton-Schulz iteration.

    torch has a Muon of its own, which iterates in bfloat16 and one matrix at a time. Without bfloat16 units that takes longer
    than the whole of a tiny model's step; here matrices of one shape are iterated together in float32.
    """

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
                self._step_together(parameters, group["lr"], group["weight_decay"], group["momentum"])

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


class Optimisers:
    """Muon and AdamW, stepped together."""

    def __init__(self, model: LoopedModel, settings: Optimiser):
        self.settings = settings
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        inner, outer = _partition(model)
        rate, decay = settings.peak_rate, settings.weight_decay
        self.both = {
            "muon": Muon(inner, lr=rate, weight_decay=decay),  # its updates have AdamW's size: one rate serves both
            "adamw": torch.optim.AdamW(outer, lr=rate, weight_decay=decay, betas=settings.betas),
        }

    def clip(self) -> Tensor:
        """Shorten the gradients to at most `clip`; the norm that they had."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)

    def step(self, rate: float) -> None:
        for optimiser in self.both.values():
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, dict]:
        return {name: optimiser.state_dict() for name, optimiser in self.both.items()}

    def restore(self, state: dict[str, dict]) -> None:
        for name, optimiser in self.both.items():
            optimiser.load_state_dict(state[name])


def rate_at(progress: float, settings: Optimiser) -> float:
    """The rate after `progress` (0 to 1) of the training."""
    if progress < settings.warmup:
        return settings.peak_rate * (progress + 1e-3) / (settings.warmup + 1e-3)
    along = min(1.0, (progress - settings.warmup) / (1 - settings.warmup))
    return settings.peak_rate * (settings.final + (1 - settings.final) * (1 + cos(pi * along)) / 2)


def _partition(model: LoopedModel) -> tuple[list[Tensor], list[Tensor]]:
    """Matrices inside the layers, and everything else. A tied head is the embedding and is listed once."""
    inner, outer = [], []
    for name, parameter in model.named_parameters():
        at_the_edge = any(part in name for part in ("wte", "embed_tokens", "lm_head", "early_exit_gate"))
        (outer if at_the_edge or parameter.ndim != 2 else inner).append(parameter)
    return inner, outer
