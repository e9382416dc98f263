"""Traces of texts that exist already: one pass over prompt and text, loop by loop."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from loopcd.decoding import Generation, checks
from loopcd.decoding.chat import text_ids
from loopcd.decoding.rules import relative_change
from loopcd.decoding.texts import BROKEN
from loopcd.models import LoopedModel, LoopState
from loopcd.models.coda import CodaModel
from loopcd.tracing.measure import TraceSetting, measured
from loopcd.tracing.trace import LoopTrace


@dataclass(frozen=True)
class Written:
    """A text to trace: a prompt, the tokens that follow it, and what is to be noted of how they came about."""

    prompt: str | Sequence[int]
    token_ids: Sequence[int]
    text: str | None = None  # the tokens' text without special ones, unless given
    loops: Sequence[int] | None = None  # run for each token when it was generated; None: all
    init_seed: int | None = None
    method: str = "greedy"
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, prompt: str | Sequence[int], made: Generation, method: str = "greedy", init_seed: int | None = None, **extra: Any
    ) -> "Written":
        """What was generated for a prompt."""
        return cls(prompt, made.token_ids, made.text, made.loops, init_seed, method, extra)


def trace_texts(
    model: LoopedModel,
    tokenizer: Any,
    items: Iterable[Written],
    *,
    amateur_loop: int | None = None,
    strength: float | None = None,
    plausibility: float = 0.1,
    top: int = 6,
    num_loops: int | None = None,
    batch_size: int = 8,
) -> Iterator[LoopTrace]:
    """The trace of each text, in their order; one batch is in memory at a time.

    Amateur and strength are the model's preset where not given.
    """
    checks.whole("batch_size", batch_size, 1)
    setting = TraceSetting.of(model, num_loops, amateur_loop, strength, plausibility, top)
    return (trace for batch in _batches(items, batch_size) for trace in trace_batch(model, tokenizer, batch, setting))


def _batches(items: Iterable[Written], size: int) -> Iterator[list[Written]]:
    """Texts from drawn initial states by themselves."""
    for _, alike in groupby(items, key=lambda item: item.init_seed is None):
        while batch := list(islice(alike, size)):
            yield batch


def trace_batch(model: LoopedModel, tokenizer: Any, items: Sequence[Written], setting: TraceSetting) -> list[LoopTrace]:
    """The traces of texts that go through the model together: all from a drawn initial state, or none."""
    prompts = [_prompt_ids(item.prompt, tokenizer) for item in items]
    lengths = [len(item.token_ids) for item in items]
    if 0 in lengths:
        raise ValueError("token_ids is empty: a trace needs at least one token")
    read = _read(model, prompts, items, setting)
    readouts, changes = (zip(*(each.split(lengths) for each in by_loop), strict=True) for by_loop in read)  # by text
    return [
        assembled(model, tokenizer, item, prompt, setting, hidden, changed)
        for item, prompt, hidden, changed in zip(items, prompts, readouts, changes, strict=True)
    ]


@torch.no_grad()
def _read(
    model: LoopedModel, prompts: Sequence[Sequence[int]], items: Sequence[Written], setting: TraceSetting
) -> tuple[list[Tensor], list[Tensor]]:
    """What the head reads [N, width], and the latents' change [N], after each loop, where a token of a text is chosen.

    Rows are padded on the right: no token sees what comes after it, so no mask is needed.
    """
    seen = [[*prompt, *item.token_ids[:-1]] for prompt, item in zip(prompts, items, strict=True)]
    ids = pad_sequence([torch.tensor(tokens, dtype=torch.long) for tokens in seen], batch_first=True)
    rows = torch.cat([torch.full((len(item.token_ids),), row) for row, item in enumerate(items)]).to(model.device)
    columns = torch.cat([torch.arange(len(p) - 1, len(s)) for p, s in zip(prompts, seen, strict=True)]).to(model.device)
    seeds = [item.init_seed for item in items if item.init_seed is not None]
    drawn: dict[str, Any] = {"init_seed": seeds} if seeds else {}
    lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    is_prompt = (torch.arange(ids.shape[1]) < lengths).long().to(model.device)  # [texts, time]
    read_as = model.prompt_options(ids, is_prompt) if model.prompt_options(ids) else {}
    state = model.begin(ids.to(model.device), **drawn, **read_as)
    readouts, latents, changes = [], [], []
    for _ in range(setting.num_loops):
        before, state = state, model.advance(state)
        readouts.append(model.readout(state)[rows, columns])
        latents.append(state.hidden[rows, columns])
        changes.append(relative_change(before.hidden[rows, columns].float(), latents[-1].float()))
    if not model.pointwise_readout and setting.coda == "shared":  # asked of the model, which may be wrapped in another
        _share_coda(cast(CodaModel, model), state, readouts, latents, rows, columns, [len(item.token_ids) for item in items])
    return readouts, changes


def _share_coda(
    model: CodaModel,
    final: LoopState,
    readouts: list[Tensor],
    latents: Sequence[Tensor],
    rows: Tensor,
    columns: Tensor,
    lengths: Sequence[int],
) -> None:
    """Put what early loops say through the shared coda in the place of what they say through one of their own, which is right
    for the first token of each text, since there the pass is that over the prompt."""
    within = torch.cat([torch.arange(length) for length in lengths]).to(rows.device)
    later = within > 0
    if not bool(later.any()):
        return
    shape = (len(lengths), max(lengths))
    places = columns.new_zeros(shape).index_put((rows, within), columns)  # [texts, longest]
    padded = (each.new_zeros(*shape, each.shape[-1]).index_put((rows, within), each) for each in latents[:-1])
    for own, shared in zip(readouts, model.read_later_tokens(padded, final, places), strict=False):
        own[later] = shared[rows, within][later]


@torch.no_grad()
def assembled(
    model: LoopedModel,
    tokenizer: Any,
    item: Written,
    prompt_ids: Sequence[int],
    setting: TraceSetting,
    readouts: Sequence[Tensor],
    changes: Sequence[Tensor],
) -> LoopTrace:
    """One text's trace from what was read at its n tokens: [n, width] and [n] of each loop."""
    arrays = measured(model, readouts, changes, setting)
    tokens = list(map(int, item.token_ids))
    text = item.text
    if text is None:
        text = "" if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=True)
    ids = np.concatenate([tokens, arrays["top_ids"].ravel(), arrays["plausible_ids"], arrays["unconstrained"]])
    return LoopTrace(
        prompt=item.prompt if isinstance(item.prompt, str) else "" if tokenizer is None else tokenizer.decode(prompt_ids),
        text=text,
        prompt_ids=np.array(prompt_ids, np.int32),
        token_ids=np.array(tokens, np.int32),
        pieces=text_pieces(tokenizer, tokens),
        exit_loop=np.array([setting.num_loops] * len(tokens) if item.loops is None else item.loops, np.int16),
        **arrays,
        amateur_loop=setting.amateur_loop,
        strength=setting.strength,
        plausibility=setting.plausibility,
        num_loops=setting.num_loops,
        model=(model.config.name_or_path or "").rstrip("/").rpartition("/")[2] or model.config.model_type,
        method=item.method,
        init_seed=item.init_seed,
        token_texts={} if tokenizer is None else {token: tokenizer.decode([token]) for token in np.unique(ids).tolist()},
        extra=dict(item.extra),
    )


def _prompt_ids(prompt: str | Sequence[int], tokenizer: Any) -> list[int]:
    if isinstance(prompt, str) and tokenizer is None:
        raise ValueError("prompt is a text, but there is no tokenizer: pass token ids")
    ids = text_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt
    if not len(ids):
        raise ValueError("prompt is empty: at least one token")
    return list(map(int, ids))


def text_pieces(tokenizer: Any, token_ids: Sequence[int]) -> tuple[str, ...]:
    """One text for each token, which together are the text with special tokens; no piece splits a character."""
    if tokenizer is None:
        return ("",) * len(token_ids)
    whole = tokenizer.decode(token_ids)
    pieces, held = [], []
    for token in token_ids:
        held.append(token)
        text = tokenizer.decode(held)
        pieces.append("" if text.endswith(BROKEN) else text)
        held = held if text.endswith(BROKEN) else []
    if held:
        pieces[-1] = tokenizer.decode(held)
    return tuple(pieces) if "".join(pieces) == whole else _by_beginnings(tokenizer, token_ids, whole)


def _by_beginnings(tokenizer: Any, token_ids: Sequence[int], whole: str) -> tuple[str, ...]:
    """The same where a token's text depends on those before it: what each adds to the text of all before. Slower."""
    pieces, shown = [], 0
    for count in range(1, len(token_ids)):
        text = tokenizer.decode(token_ids[:count]).rstrip(BROKEN)
        known = len(text) if whole.startswith(text) else shown
        pieces.append(whole[shown : max(shown, known)])
        shown = max(shown, known)
    return (*pieces, whole[shown:])
