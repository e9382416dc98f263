"""The generation loop. `steps` is the primitive: it yields one token of every row at a time.

transformers' `generate` drives it through `run_custom_generate`; `loopcd.generate` and `loopcd.stream` drive it directly.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from loopcd.decoding.bans import nothing_left, parted, rule_out
from loopcd.decoding.narrowing import Narrowing, closed_up, without_ended
from loopcd.decoding.reader import Reader, Reading, check_finite
from loopcd.decoding.scoring import PlainScorer, Scorer, Scores, seeded
from loopcd.models.cache import LoopCache
from loopcd.models.memory import check_memory
from loopcd.models.stages import LoopedModel, LoopState

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

    @classmethod
    def drawn(
        cls, temperature: float, top_p: float, seed: int, numbers: Iterable[int], processors: Iterable[Any] = ()
    ) -> "Sampling":
        """Draws after these processors; those of a row follow from the seed and the row's number."""
        changing = [*processors, TemperatureLogitsWarper(float(temperature))]
        if top_p < 1:
            changing.append(TopPLogitsWarper(top_p))
        return cls(True, LogitsProcessorList(changing), [seeded(seed, number) for number in numbers])

    @cached_property
    def parts(self) -> tuple[list[Any], LogitsProcessorList]:
        """The processors that rule tokens out before a method scores, and those that change its scores."""
        return parted(self.processors)

    @property
    def plain(self) -> bool:
        """Whether the best token can be taken without looking at the whole vocabulary."""
        return not self.draw and not self.parts[1] and not self.keep_scores

    @property
    def keeps(self) -> bool:
        return self.keep_scores or self.keep_logits


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
    token_type_ids: Tensor | None = None  # [batch, time], see Reader
    numbers: Sequence[int] | None = None  # which prompt of a call each row is, where draws are to follow from that

    def longest_row(self) -> int:
        """The row with the least padding."""
        return 0 if self.attention_mask is None else int(self.attention_mask.sum(dim=1).argmax())

    def reader(self, method: "Method") -> Reader:
        batch, time = self.input_ids.shape
        check_memory(self.model, tokens=max(time, self.limit or 0), batch=batch, num_loops=self.num_loops)
        leave = method.leaving(self.model, self.num_loops)
        return Reader(self.model, self.num_loops, leave, self.init_seed, self.cache, self.limit, self.token_type_ids)


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
    drafts: Any = None  # a DraftReport that goes on with the job, where a draft is used


@torch.no_grad()
def steps(method: "Method", job: Job) -> Iterator[Step]:
    """Generate until every row has stopped. Rows that have leave, where nobody can miss them."""
    reader, sampling, pad = job.reader(method), job.sampling, job.pad_token_id
    scorer, text = method.scorer(reader, job.tokenizer), job.input_ids
    narrowing, may_narrow = Narrowing(reader.cache, len(text), kept=False), _may_narrow(job)
    going = torch.ones(text.shape[0], dtype=torch.bool, device=text.device)
    seen: list[Tensor] = []  # the scores of all steps, which is what transformers hands to those who say where a text stops
    reading, loops = prefill(method, reader, job, scorer.watch)
    while True:
        scores, picked, processed = choose(scorer, reading, reader.cache, narrowing.own(text), sampling, going)
        picked = narrowing.widened(picked)
        if pad is not None:
            picked = torch.where(going, picked, pad)
        text = torch.cat([text, picked[:, None]], dim=-1)
        kept = reading.logits if sampling.keep_logits else None
        loops, contested, touched = map(narrowing.widened, (loops, scores.contested, scores.touched))
        processed = processed if narrowing.whole else None
        yield Step(picked, going, loops, contested, touched, processed, kept)
        if sampling.keep_scores:
            seen.append(processed)  # pyright: ignore[reportArgumentType]
        going = going & ~job.stopping(text, tuple(seen) if sampling.keep_scores else None)  # pyright: ignore[reportArgumentType]
        goes = narrowing.own(going).tolist()
        if not any(goes):
            check_finite(reading.logits)  # of a device that is not asked at every token: what went wrong in a cache stays there
            return
        if may_narrow and narrowing.worth(sum(goes)):
            staying = closed_up([row for row, each in enumerate(goes) if each])
            narrowing.leave(torch.tensor(staying))
            sampling, goes = without_ended(reader, sampling, staying), [True] * len(staying)
        reading, loops = reader.read(narrowing.own(picked)[:, None], watch=scorer.watch)
        if not all(goes):
            reading = replace(reading, going=goes)


def _may_narrow(job: Job) -> bool:
    """Not where somebody goes on from the cache, looks at all rows' scores, or draws for them together."""
    sampling = job.sampling
    alone = not sampling.draw or sampling.generators is not None
    return job.cache is None and job.pad_token_id is not None and alone and not sampling.parts[0] and not sampling.keeps


def prefill(method: "Method", reader: Reader, job: Job, watch: Callable[[LoopState], None]) -> tuple[Reading, Tensor]:
    """Read what the cache does not hold yet of the prompts, in pieces of `job.chunk` tokens where that is given.

    Not in pieces where they are read in both directions, or may leave the loop early: an exit rule looks at all tokens of a
    pass, and the pieces of a padded prompt are not those that it has alone. Tokens that a draft wrote and left unread are read
    as they would have been, one by one, by a scorer of theirs: what is drawn for this text begins behind them.
    """
    new, mask = job.input_ids[:, reader.cache.length :], job.attention_mask
    behind = max(0, min(reader.cache.behind, new.shape[1] - 1))
    whole = job.chunk is None or reader.exit is not None or reader.model.prompt_options(new, job.token_type_ids)
    size = max(1, new.shape[1] if whole else job.chunk or 1)
    read = None
    earlier = (reader.as_before(), method.scorer(reader, job.tokenizer).watch) if behind else (reader, watch)
    for start in [*range(behind), *range(behind, new.shape[1], size)]:
        stop = start + 1 if start < behind else start + size
        part_mask = None if mask is None else mask[:, : mask.shape[1] - new.shape[1] + min(stop, new.shape[1])]
        by, seen_by = earlier if start < behind else (reader, watch)
        read = by.read(new[:, start:stop], part_mask, seen_by)
    if read is None:
        raise ValueError("the prompt is empty, or past_key_values hold all of it: at least one token has to be read")
    check_finite(read[0].logits)
    return read


def choose(
    scorer: Scorer, reading: Reading, cache: LoopCache, text: Tensor, sampling: Sampling, going: Tensor | None = None
) -> tuple[Scores, Tensor, Tensor | None]:
    """The scores after `text` [batch, time], and what `pick` makes of them; rows not `going` need no possible token."""
    added = None
    if reading.logits.is_cpu:
        check_finite(reading.logits)
    if sampling.parts[0]:
        ruled = rule_out(sampling.parts[0], text, reading.logits, isinstance(scorer, PlainScorer))
        stuck = (~ruled.possible if going is None else going & ~ruled.possible).nonzero().flatten().tolist()
        if stuck:
            raise nothing_left(stuck[0], text)
        reading, added = replace(reading, logits=ruled.logits), ruled.added
    scores = scorer.score(reading, cache)
    return scores, *pick(scores, text, sampling, added)


def pick(scores: Scores, text: Tensor, sampling: Sampling, added: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The next token [batch], and the processed scores where anything needed the whole vocabulary; `added` is part of them."""
    if sampling.plain and added is None:
        return scores.best(), None
    full = scores.full().clone() if added is None else scores.full() + added
    if sampling.parts[1]:
        full = sampling.parts[1](text, full)  # pyright: ignore[reportArgumentType]
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
    drafts: Any = None  # a DraftReport, where a draft was used
    init_seeds: list[int | None] | None = None  # of each row's initial state, where the method drew it itself


def collect(made: Iterator[Step], pad: int, on_step: Callable[[Step], None] | None = None) -> Rows:
    """Bring the steps together. A row has a token in those steps in which it was going, which need not be successive."""
    done: list[Step] = []
    try:
        for step in made:
            done.append(step)
            if on_step is not None:
                on_step(step)
    finally:
        getattr(made, "close", bool)()  # whoever ends it from outside finds the cache in order at once
    going = torch.stack([step.going for step in done], dim=1).cpu()  # [batch, steps]
    order = going.logical_not().to(torch.int8).argsort(dim=1, stable=True)[:, : int(going.sum(dim=1).max())]
    going = going.gather(1, order)

    def gathered(name: str, fill: int = 0) -> Tensor:
        values = torch.stack([getattr(step, name) for step in done], dim=1).cpu().gather(1, order)
        return values.masked_fill(~going, fill)

    return Rows(
        tokens=gathered("tokens", pad).to(done[0].tokens.device),
        going=going,
        loops=gathered("loops"),
        contested=gathered("contested"),
        touched=gathered("touched"),
        scores=tuple(step.scores for step in done if step.scores is not None) or None,
        logits=tuple(step.logits for step in done if step.logits is not None) or None,
        drafts=done[-1].drafts,
    )


@dataclass
class LoopedOutput(GenerateDecoderOnlyOutput):
    """transformers' output of generate, and what the loops did: one entry for each new token of each row."""

    loops: Tensor | None = None  # [batch, new]
    contested: Tensor | None = None  # [batch, new] bool
    touched: Tensor | None = None  # [batch, new] bool
    drafts: Any = None  # a DraftReport, where a draft was used


# settings of transformers' other ways of decoding, which a method would ignore
_UNUSED = (
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "penalty_alpha",
    "dola_layers",
    "output_attentions",
    "output_hidden_states",
)


_FORWARD_ONLY = ("exit_at_step", "exit_threshold", "use_weighted_exit")  # what a forward pass of Ouro's knows


def _check_positions(position_ids: Tensor | None, mask: Tensor) -> None:
    """transformers makes them of the mask, as a method does, of all tokens or the last ones; others would be ignored."""
    if position_ids is None:
        return
    told = position_ids.shape[-1]
    real, own = mask[:, -told:].bool(), (mask.long().cumsum(dim=1) - 1)[:, -told:]
    if told > mask.shape[1] or bool(((position_ids != own) & real).any()):
        raise ValueError("position_ids other than those of the attention mask have no effect with a method: leave them out")


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
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    **others: Any,
) -> Tensor | LoopedOutput:
    """The decoding loop that transformers' `generate` calls when it is given a method as `custom_generate`."""
    config = generation_config
    if config.num_beams > 1:
        raise ValueError(f"num_beams={config.num_beams}: {type(method).__name__} chooses one token at a time; use num_beams=1")
    refused = [name for name in _UNUSED if getattr(config, name, None)]
    if refused:
        raise ValueError(
            f"{refused[0]}={getattr(config, refused[0])!r} has no effect with {type(method).__name__}: leave it out"
        )
    refused = [name for name in _FORWARD_ONLY if others.get(name) is not None and others[name] is not False]
    if refused:
        raise ValueError(f"{refused[0]} has no effect with {type(method).__name__}: leave it out, or generate without a method")
    if others.get("inputs_embeds") is not None or input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ValueError("a method reads token ids: give input_ids of at least one token, not inputs_embeds")
    _check_positions(position_ids, torch.ones_like(input_ids) if attention_mask is None else attention_mask)
    if streamer is not None and method.draft is not None and input_ids.shape[0] > 1:
        raise ValueError("a streamer with a draft: for one row at a time, since rows do not keep step")
    if past_key_values is None:
        past_key_values = model.new_cache(limit=config.max_length)
    if method.exit is not None:
        past_key_values.exited = method.exit.exited
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
        pad_token_id=None if pad is None else int(pad),
        num_loops=num_loops,
        init_seed=init_seed,
        cache=past_key_values,
        limit=config.max_length,
        chunk=config.prefill_chunk_size,
        token_type_ids=token_type_ids,
    )
    rows = method.rows(job, None if streamer is None else lambda step: streamer.put(step.tokens.cpu()))
    if streamer is not None:
        streamer.end()
    sequences = torch.cat([input_ids, rows.tokens.to(input_ids.device)], dim=1)
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
        drafts=rows.drafts,
    )
