"""The generation loop. `steps` is the primitive: it yields one token of every row at a time.

transformers' `generate` drives it through `run_custom_generate`; `loopcd.generate` and `loopcd.stream` drive it directly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from loopcd.decoding.engine import Engine
from loopcd.decoding.scoring import Scores
from loopcd.models.cache import LoopCache
from loopcd.models.memory import check_memory
from loopcd.models.stages import LoopedModel

if TYPE_CHECKING:
    from loopcd.decoding.methods import Method


@dataclass(frozen=True)
class Sampling:
    """How a token is picked from the scores: the best one, or a draw, each row by its own generator where given."""

    draw: bool = False
    processors: LogitsProcessorList | None = None
    generators: Sequence[torch.Generator] | None = None
    keep_scores: bool = False
    keep_logits: bool = False


@dataclass(frozen=True)
class Job:
    """One batch of prompts, and all that is said about how to continue them."""

    model: LoopedModel
    input_ids: Tensor  # [batch, time], padded on the left
    attention_mask: Tensor | None  # [batch, time]
    stopping: StoppingCriteriaList
    sampling: Sampling
    tokenizer: Any = None
    pad_token_id: int | None = None
    num_loops: int | None = None
    init_seed: int | Sequence[int] | None = None
    cache: LoopCache | None = None  # to go on from; a new one where None
    limit: int | None = None  # the longest text that the job can make
    chunk: int | None = None  # read the prompt in pieces of so many tokens
    numbers: Sequence[int] | None = None  # which prompt of a call each row is, where draws are to follow from that

    def engine(self, method: "Method") -> Engine:
        batch, time = self.input_ids.shape
        check_memory(self.model, tokens=time, batch=batch, num_loops=self.num_loops)
        return Engine(self.model, self.num_loops, method.exit, self.init_seed, self.cache, self.limit)


@dataclass(frozen=True)
class Step:
    """One new token of every row."""

    tokens: Tensor  # [batch], padding in rows that had ended before
    going: Tensor  # [batch] bool, rows that had not ended before this token
    loops: Tensor  # [batch], loops run for this token
    contested: Tensor  # [batch] bool, several tokens were plausible
    touched: Tensor  # [batch] bool, the method's rule intervened
    scores: Tensor | None = None  # [batch, vocab] after the processors, where they were asked for
    logits: Tensor | None = None  # [batch, vocab] of the expert, where they were asked for


@torch.no_grad()
def steps(method: "Method", job: Job) -> Iterator[Step]:
    """Generate until every row has stopped."""
    engine = job.engine(method)
    scorer = method.scorer(engine, job.tokenizer)
    text, mask = job.input_ids, job.attention_mask
    going = torch.ones(text.shape[0], dtype=torch.bool, device=text.device)
    new = text[:, engine.cache.length :]
    while bool(going.any()):
        *before, last = _parts(new, mask, job.chunk)
        for part, part_mask in before:
            engine.read(part, part_mask, scorer.watch)
        reading, loops = engine.read(*last, scorer.watch)
        scores = scorer.score(reading, engine.cache)
        picked, processed = pick(scores, text, job.sampling)
        if job.pad_token_id is not None:
            picked = torch.where(going, picked, job.pad_token_id)
        was_going, new, mask = going, picked[:, None], None
        text = torch.cat([text, new], dim=-1)
        going = going & ~job.stopping(text, processed)  # pyright: ignore[reportArgumentType]
        kept = reading.logits if job.sampling.keep_logits else None
        yield Step(picked, was_going, loops, scores.contested, scores.touched, processed, kept)


def _parts(new: Tensor, mask: Tensor | None, chunk: int | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The new tokens in pieces of `chunk`, for a bounded memory; one piece where no size is given."""
    size = chunk or new.shape[1]
    for start in range(0, new.shape[1], max(1, size)):
        part_mask = None if mask is None else mask[:, mask.shape[1] - new.shape[1] + start :][:, :size]
        yield new[:, start : start + size], part_mask


def pick(scores: Scores, text: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """The next token [batch], and the processed scores where anything needed the whole vocabulary."""
    if not sampling.draw and not sampling.processors and not sampling.keep_scores:
        return scores.best(), None
    full = scores.full().clone()
    if sampling.processors:
        full = sampling.processors(text, full)  # pyright: ignore[reportArgumentType]
    if not sampling.draw:
        return full.argmax(dim=-1), full
    probabilities = full.softmax(dim=-1)
    if sampling.generators is None:
        return torch.multinomial(probabilities, 1).squeeze(1), full
    drawn = [
        torch.multinomial(row.to(generator.device), 1, generator=generator)
        for row, generator in zip(probabilities, sampling.generators, strict=True)
    ]
    return torch.cat(drawn).to(text.device), full


@dataclass(frozen=True)
class Rows:
    """What was generated, one entry for each new token of each row; rows that ended early are padded on the right."""

    tokens: Tensor  # [batch, new]
    going: Tensor  # [batch, new] bool, False for padding
    loops: Tensor  # [batch, new]
    contested: Tensor  # [batch, new] bool
    touched: Tensor  # [batch, new] bool
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None


def collect(done: Iterator[Step], on_step: Callable[[Step], None] | None = None) -> Rows:
    made: list[Step] = []
    for step in done:
        made.append(step)
        if on_step is not None:
            on_step(step)
    return Rows(
        tokens=torch.stack([step.tokens for step in made], dim=1),
        going=torch.stack([step.going for step in made], dim=1).cpu(),
        loops=torch.stack([step.loops for step in made], dim=1),
        contested=torch.stack([step.contested for step in made], dim=1),
        touched=torch.stack([step.touched for step in made], dim=1),
        scores=tuple(step.scores for step in made if step.scores is not None) or None,
        logits=tuple(step.logits for step in made if step.logits is not None) or None,
    )


@dataclass
class LoopedOutput(GenerateDecoderOnlyOutput):
    """transformers' output of generate, and what the loops did: one entry for each new token of each row."""

    loops: Tensor | None = None  # [batch, new]
    contested: Tensor | None = None  # [batch, new] bool
    touched: Tensor | None = None  # [batch, new] bool


def run_custom_generate(
    method: "Method",
    model: LoopedModel,
    input_ids: Tensor,
    *,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    streamer: Any = None,
    tokenizer: Any = None,
    attention_mask: Tensor | None = None,
    past_key_values: LoopCache | None = None,
    num_loops: int | None = None,
    init_seed: int | Sequence[int] | None = None,
    **_: Any,
) -> Tensor | LoopedOutput:
    """The decoding loop that transformers' `generate` calls when it is given a method as `custom_generate`."""
    config = generation_config
    if config.num_beams > 1:
        raise ValueError(f"num_beams={config.num_beams}: {type(method).__name__} chooses one token at a time; use num_beams=1")
    if past_key_values is None:
        past_key_values = model.new_cache(limit=config.max_length)
    if method.exit is not None:
        past_key_values.exited = method.exit.exited
    has_eos = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    pad = getattr(config, "_pad_token_tensor", None)
    detailed = bool(config.return_dict_in_generate)
    job = Job(
        model,
        input_ids,
        attention_mask,
        stopping_criteria,
        Sampling(
            draw=bool(config.do_sample),
            processors=logits_processor,
            keep_scores=detailed and bool(config.output_scores),
            keep_logits=detailed and bool(config.output_logits),
        ),
        tokenizer,
        pad_token_id=int(pad) if has_eos and pad is not None else None,
        num_loops=num_loops,
        init_seed=init_seed,
        cache=past_key_values,
        chunk=config.prefill_chunk_size,
    )
    rows = method.rows(job, None if streamer is None else lambda step: streamer.put(step.tokens.cpu()))
    if streamer is not None:
        streamer.end()
    sequences = torch.cat([input_ids, rows.tokens], dim=1)
    if not detailed:
        return sequences
    return LoopedOutput(
        sequences=sequences,  # pyright: ignore[reportArgumentType]
        scores=rows.scores if job.sampling.keep_scores else None,  # pyright: ignore[reportArgumentType]
        logits=rows.logits if job.sampling.keep_logits else None,  # pyright: ignore[reportArgumentType]
        past_key_values=past_key_values,
        loops=rows.loops,
        contested=rows.contested,
        touched=rows.touched,
    )
