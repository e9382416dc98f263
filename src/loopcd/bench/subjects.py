"""What is measured: models, medium ones with random weights among them, and prompts as jobs of the generation loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log, sqrt
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from loopcd.decoding import Greedy
from loopcd.decoding.loop import Job, Rows, Sampling
from loopcd.decoding.texts import pad_left
from loopcd.evaluation.tasks import steps
from loopcd.models import HuginnConfig, LoopedModel, OuroConfig
from loopcd.models.layout import lay_out
from loopcd.models.presets import family_of


@dataclass(frozen=True)
class Subject:
    """A model under measurement, its tokenizer (None: random weights, random prompts), and how long its texts get."""

    name: str
    model: LoopedModel
    tokenizer: Any
    max_new_tokens: int

    def prompts(self, count: int) -> list[list[int]]:
        """Token ids of questions of the `steps` benchmark, by length; random ids where there is no tokenizer."""
        if self.tokenizer is None:
            return [random_ids(self.model, 1, 48, seed=number)[0].tolist() for number in range(count)]
        asked = steps.problems("steps", "test", count)
        return sorted((self.tokenizer(each.prompt).input_ids for each in asked), key=len)

    def job(self, prompts: Sequence[Sequence[int]]) -> Job:
        """One batch, to be continued greedily until each row's end token, on a cache of its own."""
        pad = getattr(self.tokenizer, "pad_token_id", None) or self.model.config.pad_token_id or 0
        ids, mask = pad_left(prompts, pad, self.model.device)
        length = min(ids.shape[1] + self.max_new_tokens, self.model.max_context)
        stopping = StoppingCriteriaList([MaxLengthCriteria(length)])
        end = getattr(self.tokenizer, "eos_token_id", None)
        if end is not None:
            stopping.append(EosTokenCriteria(end))
        return Job(
            self.model,
            ids,
            None if bool(mask.all()) else mask,
            stopping,
            Sampling(),
            self.tokenizer,
            pad_token_id=pad,
            cache=self.model.new_cache(limit=length),
            limit=length,
        )


def token_count(rows: Rows) -> int:
    return int(rows.going.sum())


def texts(rows: Rows) -> list[list[int]]:
    """The tokens of each row, without padding."""
    return [tokens[going.to(tokens.device)].tolist() for tokens, going in zip(rows.tokens, rows.going, strict=True)]


def _medium(config: type[PreTrainedConfig], fields: dict[str, Any], vocabulary: int = 4096, **changes: Any) -> LoopedModel:
    """A model of width 512 with random weights, laid out as `load` does it."""
    torch.manual_seed(0)
    made = config(**{**fields, "intermediate_size": 1536, "vocab_size": vocabulary, **changes})
    model = family_of(made)(made)
    lay_out(model)
    return model.eval()


# 2 + 4 × 16 + 2 layers; the head is a matrix of its own, so that it can be sharpened alone
_HUGINN = {"n_embd": 512, "n_heads": 8, "mean_recurrence": 16, "block_size": 2048, "tie_embeddings": False}
# 8 layers × 4 loops
_OURO = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 8, "max_position_embeddings": 2048}

MEDIUM: dict[str, Callable[..., LoopedModel]] = {
    "huginn-medium": partial(_medium, HuginnConfig, _HUGINN),
    "ouro-medium": partial(_medium, OuroConfig, _OURO),
}


@torch.no_grad()
def disagreeing(model: LoopedModel, seed: int = 0) -> LoopedModel:
    """The model with weights drawn so large that its loops never settle: what an early loop drafts is refused."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.copy_(torch.randn(weight.shape, generator=generator) * 2 / sqrt(weight.shape[1]))
    return model


@torch.no_grad()
def sharpen(subject: Subject, prompts: Sequence[Sequence[int]], share: float = 0.15, plausibility: float = 0.1) -> float:
    """Scale the head so that about this share of positions has a second plausible token; the scale.

    A second token is plausible where it trails the first by less than −ln(plausibility). The scale does not change what
    greedy decoding writes, so it can be set by that text; the weights should be such that the text does not run in circles.
    """
    job = subject.job(prompts)
    steps = Greedy().steps(replace(job, sampling=Sampling(keep_logits=True)))
    best = torch.stack([step.logits.topk(2, dim=-1).values for step in steps if step.logits is not None])  # [time, rows, 2]
    gap = float(torch.quantile(best[..., 0] - best[..., 1], share))
    scale = -log(plausibility) / max(gap, 1e-6)
    subject.model.lm_head.weight.mul_(scale)
    return scale


def random_ids(model: LoopedModel, rows: int, time: int, seed: int = 0) -> torch.Tensor:
    """[rows, time], where the model is"""
    drawn = torch.randint(0, model.config.vocab_size, (rows, time), generator=torch.Generator().manual_seed(seed))
    return drawn.to(model.device)
