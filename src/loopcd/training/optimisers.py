"""The two optimisers behind one rate, and the rate's schedule."""

from __future__ import annotations

from math import cos, pi

import torch
from torch import Tensor

from loopcd.models import LoopedModel
from loopcd.training.muon import Muon
from loopcd.training.recipe import Optimiser


class Optimisers:
    """Muon and AdamW, stepped together."""

    def __init__(self, model: LoopedModel, settings: Optimiser):
        self.settings = settings
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        inner, outer = _partition(model)
        rate, decay = settings.peak_rate, settings.weight_decay
        self.muon = Muon(inner, lr=rate, weight_decay=decay)  # its updates have AdamW's size: one rate serves both
        self.adamw = torch.optim.AdamW(outer, lr=rate, weight_decay=decay, betas=settings.betas)

    def step(self, rate: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        for optimiser in (self.muon, self.adamw):
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, dict]:
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def restore(self, state: dict[str, dict]) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])


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
