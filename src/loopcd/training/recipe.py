"""What a training run is made of. A recipe is a frozen value: with a seed it says everything about a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedConfig

from loopcd.models import LoopedModel
from loopcd.training.objectives import Objective


@dataclass(frozen=True)
class Text:
    """The rows of the training text.

    variant            the word problems
    equations_early    share of rows that hold bare equations, until half of the training is done
    equations_late     the same, afterwards
    question_weight    what a token of the question counts in the loss; a token of the answer counts 1
    tokens_per_step    about so many tokens are in a batch
    widths             rows are padded to the smallest of these; few widths mean few compiled shapes
    """

    variant: str = "steps"
    equations_early: float = 0.4
    equations_late: float = 0.16
    question_weight: float = 0.05
    tokens_per_step: int = 1536
    widths: tuple[int, ...] = (64, 88, 136)


@dataclass(frozen=True)
class Optimiser:
    """Muon for the matrices inside the layers, AdamW for embeddings, norms, biases and the gate.

    Both use the same rate, which rises linearly during the first `warmup` of the training and then falls along a cosine
    to `final` of its peak.
    """

    peak_rate: float = 3e-3
    warmup: float = 0.02
    final: float = 0.02
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """`tokens` is the length of the training; padding counts, since it is computed as well.

    `prepare` changes the fresh model's initial weights, where the architecture's own start does not suit its size.
    """

    name: str
    architecture: type[LoopedModel]
    config: PreTrainedConfig
    objective: Objective
    tokens: int
    text: Text = Text()
    optimiser: Optimiser = Optimiser()
    prepare: Callable[[LoopedModel], None] | None = None
    description: str = ""

    def initial_model(self) -> LoopedModel:
        model = self.architecture(self.config)
        if self.prepare is not None:
            self.prepare(model)
        return model

    def record(self) -> dict[str, Any]:
        """The recipe as plain values, for the record of a run."""
        settings = {name: asdict(getattr(self, name)) for name in ("objective", "text", "optimiser")}
        named = {"architecture": self.architecture.__name__, "objective_name": type(self.objective).__name__}
        config = self.config.to_diff_dict()
        return {
            "name": self.name,
            "description": self.description,
            "tokens": self.tokens,
            **named,
            **settings,
            "config": config,
        }
