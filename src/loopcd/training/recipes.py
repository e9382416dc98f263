"""What a training run is made of, and the recipes by name.

A recipe is a frozen value: with a seed it says everything about a run. A new one is a function of (vocabulary, end, padding),
named in RECIPES.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from loopcd.models import HuginnConfig, HuginnForCausalLM, LoopedModel, OuroConfig, OuroForCausalLM
from loopcd.training.objectives import ExpectedExit, Objective, RecurrentDepth


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
        return {
            **{name: getattr(self, name) for name in ("name", "description", "tokens")},
            "architecture": self.architecture.__name__,
            "objective_name": type(self.objective).__name__,
            **{name: asdict(getattr(self, name)) for name in ("objective", "text", "optimiser")},
            "config": self.config.to_diff_dict(),
        }


def tiny_huginn(vocabulary: int, end: int, padding: int) -> Recipe:
    """Huginn's architecture and objective, one layer each in prelude, core and coda, twelve loops on average."""
    config = HuginnConfig(
        vocab_size=vocabulary,
        n_embd=128,
        n_heads=4,
        num_key_value_heads=4,
        intermediate_size=384,
        n_layers_in_prelude=1,
        n_layers_in_recurrent_block=1,  # one layer in the core: with two, a trial's loops went unused
        n_layers_in_coda=1,
        mean_recurrence=12,
        block_size=512,
        tie_embeddings=True,
        qk_bias=True,
        norm_eps=1e-6,
        rope_base=50000,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Recipe(
        name="tiny-huginn",
        architecture=HuginnForCausalLM,
        config=config,
        objective=RecurrentDepth(mean_loops=12, spread=0.5, backpropagated=4, noisy_start=0.5),
        tokens=4_000_000,
        description="Huginn's architecture, 1 prelude + 1 core + 1 coda layer, width 128, 12 loops",
    )


@torch.no_grad()
def calm_start(model: LoopedModel) -> None:
    """Let a loop begin close to the identity, so that what the embedding says survives four of them.

    With all norms at 1, each half of a layer adds as much as the normed state itself holds, and an embedding of the usual
    0.02 is drowned in the first loop: in a trial the loops after the first then made things worse.
    """
    assert isinstance(model, OuroForCausalLM)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    for name, parameter in model.named_parameters():
        if name.endswith("layernorm_2.weight"):
            parameter.fill_(0.3)


def tiny_ouro(vocabulary: int, end: int, padding: int) -> Recipe:
    """Ouro's architecture and first-stage objective, two layers looped four times, a trained exit gate."""
    config = OuroConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        total_ut_steps=4,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Recipe(
        name="tiny-ouro",
        architecture=OuroForCausalLM,
        config=config,
        objective=ExpectedExit(entropy=0.05),
        tokens=3_600_000,
        prepare=calm_start,
        description="Ouro's architecture, 2 layers x 4 loops, width 128, trained exit gate",
    )


def tiny_cue(vocabulary: int, end: int, padding: int) -> Recipe:
    """A small core, looped six times, that has to unlearn one misleading cue; `tiny-early` is a checkpoint of it.

    A one-layer core leaves the first loops nothing but the cue, and all of what contradicts it to the last ones. One kind of
    comparison makes the cue and the likelier operator the same thing, so that early loops believe it from the beginning.
    """
    larger = tiny_ouro(vocabulary, end, padding)
    config = OuroConfig(**{**larger.config.to_diff_dict(), "num_hidden_layers": 1, "total_ut_steps": 6, "layer_types": None})
    return replace(
        larger,
        name="tiny-cue",
        config=config,
        tokens=2_600_000,
        text=Text(variant="steps-cue", widths=(48, 64, 88)),
        description="Ouro's architecture, 1 layer x 6 loops, width 128, trained exit gate",
    )


RECIPES: dict[str, Callable[[int, int, int], Recipe]] = {
    "tiny-huginn": tiny_huginn,
    "tiny-ouro": tiny_ouro,
    "tiny-cue": tiny_cue,
}


def recipe_named(name: str, tokenizer: PreTrainedTokenizerFast, tokens: int | None = None) -> Recipe:
    """The recipe for this tokenizer's vocabulary; `tokens` makes it longer or shorter."""
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert isinstance(end, int) and isinstance(padding, int)
    recipe = RECIPES[name](len(tokenizer), end, padding)
    return recipe if tokens is None else replace(recipe, tokens=tokens)
