"""What logits processors rule out, which a method has to know before it looks for plausible tokens.

A processor that only rules tokens out (`min_new_tokens`, `suppress_tokens`, `no_repeat_ngram_size`, `bad_words_ids`, forced
tokens, grammars) acts on the expert's logits, so that the plausible set is formed of what is possible. One of transformers' own
that changes scores (temperature, `top_p`, penalties) acts on the method's scores. A processor that is not known may do both: it
is called once, on the expert's logits; what it rules out is ruled out, and what it adds is added to the method's scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process
from transformers.generation.logits_process import LogitsProcessorList

from loopcd.decoding.rules import IMPOSSIBLE

BANNING = (
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.EncoderNoRepeatNGramLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.PrefixConstrainedLogitsProcessor,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
)
IN_STEP = (  # those that change scores by all rows, or keep texts of their own beside them, which must keep step
    logits_process.EncoderRepetitionPenaltyLogitsProcessor,
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
KEEPS_TEXTS = (logits_process.SynthIDTextWatermarkLogitsProcessor,)  # of its own too, but of one row they are in step
_BY_ROW = (logits_process.PrefixConstrainedLogitsProcessor, logits_process.EncoderNoRepeatNGramLogitsProcessor)


def bans(processor: Any) -> bool:
    """Whether a processor may rule tokens out whatever their scores are."""
    if isinstance(processor, BANNING):
        return True
    if isinstance(processor, logits_process.SequenceBiasLogitsProcessor):
        return IMPOSSIBLE in processor.sequence_bias.values()
    return type(processor).__module__ != logits_process.__name__


def by_row(processor: Any) -> bool:
    """Whether it may matter to a processor which row of a batch a text is."""
    return isinstance(processor, _BY_ROW) or type(processor).__module__ != logits_process.__name__


@dataclass(frozen=True)
class Ruled:
    """The expert's logits without what is ruled out, and what is to be added to the scores that a method makes of them."""

    logits: Tensor  # [rows, vocab]
    added: Tensor | None  # [rows, vocab]; None: nothing
    possible: Tensor  # [rows] bool, at least one token is


def parted(processors: LogitsProcessorList | None) -> tuple[list[Any], LogitsProcessorList]:
    """Those that rule tokens out, and those that change scores."""
    early = [each for each in processors or () if bans(each)]
    return early, LogitsProcessorList([each for each in processors or () if not bans(each)])


def rule_out(processors: Sequence[Any], text: Tensor, logits: Tensor, plain: bool) -> Ruled:
    """Apply processors that rule tokens out to the expert's logits [rows, vocab] after `text` [rows, time].

    `plain`: the method takes the expert's logits as they are, so that what else the processors change can stay where it is.
    """
    made = logits.clone()
    for processor in processors:
        made = processor(text, made)
    forced = made == -IMPOSSIBLE  # one way to leave a single choice
    banned = (made == IMPOSSIBLE) | (forced.any(dim=-1, keepdim=True) & ~forced)
    possible = ~banned.all(dim=-1)
    if plain:
        return Ruled(made.masked_fill(banned, IMPOSSIBLE).masked_fill(forced, 0.0), None, possible)
    added = None
    if not all(isinstance(each, BANNING) for each in processors):
        added = torch.where(torch.isfinite(made) & torch.isfinite(logits), made - logits, 0.0)
    return Ruled(logits.masked_fill(banned, IMPOSSIBLE), added, possible)


def nothing_left(row: int, text: Tensor) -> ValueError:
    return ValueError(
        f"the logits processors rule out every token of row {row} after {text.shape[-1]} tokens: loosen one of them"
    )
