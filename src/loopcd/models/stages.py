"""What a looped model is: four stages, and everything that follows from them.

    begin(input_ids, cache, …)  -> state      embeddings and, for Huginn, the prelude
    advance(state)              -> state      one more loop
    readout(state)              -> hidden     what the head reads
    head(hidden, tokens=None)   -> logits     all of the vocabulary, or only the given token ids

A family implements these (and says where its key/value slots are); the forward pass and early readouts are written here
once, generation through transformers in `generation`. Decoding methods, exit rules and drafts are written against the
stages as well.

A model may be spread over several devices: then each stage gives its result on the device of what it was given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from loopcd.models.cache import LoopCache
from loopcd.models.generation import LoopedGenerationMixin, check_cache, checked_loops, heard_loops
from loopcd.models.int8 import Int8Linear
from loopcd.models.layers import LoopedLayer, causal_mask
from loopcd.models.layout import is_plain, lay_out
from loopcd.models.reading import CheckedModel
from loopcd.models.slots import Span, column_index

Coda = Literal["own", "shared"]


@dataclass(frozen=True, slots=True)
class Pass:
    """What stays the same while the tokens of one pass go through the loops."""

    span: Span
    cache: LoopCache | None
    mask: Tensor | None  # see layers.causal_mask
    rotary: Any  # the family's own form of the positions: a tuple of tensors [rows or 1, time, ...]
    injected: Tensor | None = None  # [rows, time, width], what Huginn's loops are fed beside the state
    length: int = 0  # all positions of the pass are below this

    def mask_at(self, loop: int) -> Tensor | None:
        """The mask of loop `loop` (1 is the first): columns that left before it may be unseen."""
        seen = None if self.cache is None else self.cache.seen_at(loop)
        if seen is None:
            return self.mask
        rows = slice(None) if self.span.rows is None else self.span.rows
        seen = seen[rows, None, None, : self.span.stop]  # [rows, 1, 1, columns]
        if self.mask is not None:
            return self.mask & seen
        if self.span.time == 1:
            return seen  # one token, which sees all of the past
        # a whole prompt, for which no mask means a causal one
        time = self.span.time
        return seen & torch.ones(time, time, dtype=torch.bool, device=seen.device).tril()

    def keep(self, index: Tensor, known: Sequence[int] | None = None) -> "Pass":
        """The same pass for the rows at `index` only; `known` is the index on the host."""
        return replace(
            self,
            span=self.span.keep(index, known),
            mask=None if self.mask is None else rows_of(self.mask, index),
            rotary=rows_of(self.rotary, index),
            injected=None if self.injected is None else self.injected[index],
        )


def wide(values: Tensor) -> Tensor:
    """The same numbers in at least 32 bits: what is compared must not have been rounded to fewer."""
    return values if values.dtype.itemsize >= 4 else values.float()


def rows_of(values: Any, index: Tensor | None) -> Any:
    """Some rows (None: all) of a tensor [rows or 1, ...], 1 being the same for all, or of a tuple of such."""
    if index is None:
        return values
    if isinstance(values, tuple):
        return tuple(rows_of(part, index) for part in values)
    return values[index] if values.shape[0] > 1 else values


def joined(parts: Sequence[Any], along: int = 1) -> Any:
    """Tensors [rows, time, ...], tuples of them, or None, as one: of successive tokens, or along 0 of different texts."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    if isinstance(parts[0], tuple):
        return tuple(joined(each, along) for each in zip(*parts, strict=True))
    return torch.cat(list(parts), dim=along)


@dataclass(frozen=True, slots=True)
class LoopState:
    """The latent state after `loop` loops."""

    hidden: Tensor  # [rows, time, width]
    loop: int
    tokens: Pass
    extra: Tensor | None = None  # a second latent, where a family has one (HRM-Text's low-level state)

    def keep(self, index: Tensor) -> "LoopState":
        """The state of the rows at `index` only: the others left the loop."""
        extra = None if self.extra is None else self.extra[index]
        return LoopState(self.hidden[index], self.loop, self.tokens.keep(index), extra)


class LoopedModel(CheckedModel, LoopedGenerationMixin):
    """The stages' interface and what is built on it; the families derive from this."""

    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]  # pyright: ignore
    _is_stateful = False

    loops_field: ClassVar[str] = "num_loops"  # where the configuration keeps the number of loops
    has_initial_state: ClassVar[bool] = False  # True where the loops start from a latent that can be drawn (Huginn)
    quantized: str | None = None  # "int8" where the weights were rounded
    pointwise_readout: ClassVar[bool] = True  # False where a readout attends to other tokens' readouts (Huginn's coda)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """transformers' Trainer shifts labels, where it smooths them itself, only of classes that it knows by name."""
        super().__init_subclass__(**kwargs)
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(f"loopcd.{cls.__name__}", cls.__name__)

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.loss_type = "ForCausalLM"  # transformers takes it from the class's name; Trainer counts labels by it

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True  # transformers looks for its attention interface in the model's own file; ours is called in layers.py

    @property
    def device(self) -> torch.device:
        """Where the model computes, also where accelerate keeps all of its weights elsewhere until they are used."""
        found = super().device
        hook = getattr(self.get_input_embeddings(), "_hf_hook", None) if found.type == "meta" else None
        where = getattr(hook, "execution_device", None)
        return found if where is None else torch.device(where)

    # -- the four stages, and where the slots are ---------------------------------------------------------------------

    def begin(self, input_ids: Tensor | None = None, cache: LoopCache | None = None, **kwargs: Any) -> LoopState:
        raise TypeError(f"{type(self).__name__} does not say how a pass begins")

    def advance(self, state: LoopState) -> LoopState:
        raise TypeError(f"{type(self).__name__} does not say how it loops")

    def readout(self, state: LoopState, last: bool = False) -> Tensor:
        """[batch, time, width], what the head reads of each token; with `last` only of the last one, time being 1."""
        return self.read_latents(state.hidden[:, -1:] if last else state.hidden)

    def head(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits [..., vocab], or of the token ids `tokens` [..., n] only; of some, in the dtype of `hidden`."""
        head: Any = self.lm_head
        if tokens is None:
            return head(hidden).to(hidden.device)
        if isinstance(head, Int8Linear):
            rows = head.rows(tokens, hidden.dtype)  # [..., n, width]
        elif is_plain(head) and head.bias is None and not head.weight.is_meta:
            rows = head.weight[tokens.to(head.weight.device)].to(hidden.dtype)
        else:  # not its weight alone, or that is kept elsewhere until it is used
            return head(hidden.to(self.dtype)).to(hidden).gather(-1, tokens)
        return (rows @ hidden.to(rows.device)[..., None]).squeeze(-1).to(hidden.device)

    def loop_slots(self, loop: int) -> range:
        """The cache slots that loop `loop` (1 is the first) writes."""
        raise TypeError(f"{type(self).__name__} does not say where its keys are")

    def slot_count(self, num_loops: int | None = None) -> int:
        """Key/value slots of a cache after `num_loops` loops, early readouts not counted."""
        return self.loop_slots(num_loops or self.num_loops).stop

    def key_heads(self, num_loops: int | None = None) -> int:
        """Heads that have keys, of all these slots together."""
        each = getattr(self.config, "num_key_value_heads", None) or self.config.num_attention_heads
        return self.slot_count(num_loops) * each

    @property
    def num_loops(self) -> int:
        """Loops that a token runs unless a call says otherwise."""
        return getattr(self.config, self.loops_field)

    @num_loops.setter
    def num_loops(self, num_loops: int) -> None:
        self.set_num_loops(num_loops)

    def set_num_loops(self, num_loops: int) -> None:
        """Let every token run `num_loops` loops from now on."""
        setattr(self.config, self.loops_field, checked_loops(num_loops, 0))

    @property
    def max_context(self) -> int:
        return self.config.max_position_embeddings

    def prompt_options(self, input_ids: Tensor | None, token_type_ids: Tensor | None = None) -> dict[str, Any]:
        """What `begin` is told about a prompt beside its tokens: nothing, except where prompts are read otherwise than text.

        `token_type_ids` [batch, time] are the caller's own.
        """
        if token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError(f"token_type_ids: {type(self).__name__} does not read a prompt in both directions; leave them out")
        return {}

    # -- early readouts -----------------------------------------------------------------------------------------------

    def park(self, state: LoopState, coda: Coda = "shared") -> Any:
        """Keep what an early readout of this state needs; `read_parked` reads it."""
        return self.readout(state)

    def join_parked(self, parked: Sequence[Any]) -> Any:
        """Successive tokens' parked states as one."""
        return joined(parked)

    def read_parked(self, parked: Any, count: int = 1, rows: Tensor | None = None) -> Tensor:
        """What the head would read of the last `count` tokens, had the model stopped there: [rows, count, width].

        Several tokens that are asked for are those of a text that went on token by token; where more are parked than are asked
        for they are one piece of text, a prompt. `rows` are the rows of the batch to be read, None being all.
        """
        return parked[:, -count:] if rows is None else parked[rows, -count:]

    def read_latents(self, latents: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """What the head would read of whole texts' latents [texts, time, width], at whatever loops they are.

        `input_ids` [texts, time] are those of the texts, where `ids_in` has them.
        """
        return latents

    def ids_in(self, rotary: Any) -> Tensor | None:
        """The token ids [rows, time] that go along with a pass's positions; None where no later stage needs them."""
        return None

    # -- helpers for the families -------------------------------------------------------------------------------------

    def open_pass(
        self, embeddings: Tensor, cache: LoopCache | None, attention_mask: Tensor | None, position_ids: Tensor | None
    ) -> tuple[Pass, Tensor]:
        """The pass of these embeddings [batch, time, width] and its positions [batch or 1, time].

        A mask that spans what the cache holds, too, can hide some of it: a text that ended in an earlier turn was filled up
        behind its end.
        """
        batch, time, _ = embeddings.shape
        told = None
        if attention_mask is not None:
            told = _padding(attention_mask, batch, time, 0 if cache is None else cache.length)
        if cache is None:
            span, valid = Span(batch, 0, time), told
        else:
            span = cache.open(batch, time, told, embeddings.device)
            valid = cache.valid
        length = span.stop
        if position_ids is None:
            position_ids = positions_of(span, valid, embeddings.device)
        elif not torch.compiler.is_compiling():
            length = max(length, int(position_ids.max()) + 1)  # positions of the caller's own
        if span.stop > self.max_context and (valid is None or int(position_ids.max()) >= self.max_context):
            if cache is not None and span.columns is None:
                cache.crop(-time)  # a refused pass leaves no trace
            raise ValueError(f"{span.stop} tokens do not fit the model's context of {self.max_context}")
        mask = self.make_mask(span, valid, embeddings.device)
        return Pass(span, cache, mask, rotary=position_ids, length=length), position_ids

    def enter(self, tokens: Pass, loop: int) -> Tensor | None:
        """Make ready what the tokens see at loop `loop`, also of tokens that left before it; the mask of it."""
        cache = tokens.cache
        if cache is not None and loop > 1:
            cache.run(tokens.span, loop)
            if cache.reach is not None:
                cache.enter(tokens.span, loop, self.loop_slots(loop), self.loop_slots(loop - 1))
        return tokens.mask_at(loop)

    def make_mask(self, span: Span, valid: Tensor | None, device: torch.device) -> Tensor | None:
        """What the span's tokens see, in the form that the family's attention takes."""
        return causal_mask(span, device, valid, self.config._attn_implementation or "sdpa")

    def join(self, states: Sequence[LoopState]) -> LoopState:
        """States of successive tokens of the same rows, all at the same loop, as one state that goes on together."""
        first, cache = states[0].tokens, states[0].tokens.cache
        spans = [state.tokens.span for state in states]
        span = replace(first.span, stop=spans[-1].stop, columns=joined([span.columns for span in spans]))
        valid = None if cache is None or cache.valid is None else cache.valid[:, : span.stop]
        hidden = torch.cat([state.hidden for state in states], dim=1)
        rotary, injected = (joined([getattr(state.tokens, name) for state in states]) for name in ("rotary", "injected"))
        tokens = Pass(span, cache, self.make_mask(span, valid, hidden.device), rotary, injected)
        return LoopState(hidden, states[0].loop, tokens, joined([state.extra for state in states]))

    def embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The embeddings [batch, time, width] of checked token ids, or those that were given."""
        if inputs_embeds is not None:
            return inputs_embeds
        if input_ids is None:
            raise ValueError("a pass needs input_ids or inputs_embeds")
        if not isinstance(input_ids, Tensor):
            raise ValueError(f"input_ids={input_ids!r}: a tensor [batch, time] of token ids, as in torch.tensor([ids])")
        if input_ids.ndim != 2 or input_ids.shape[1] == 0:
            raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}: a batch of prompts of at least one token")
        if input_ids.device.type not in ("cpu", "meta") and input_ids.shape[1] > 1:
            self._check_tokens(input_ids)  # elsewhere the embedding itself notices, without a wait for the device
        try:
            return self.get_input_embeddings()(input_ids).to(input_ids.device)
        except IndexError:
            self._check_tokens(input_ids)
            raise

    def _check_tokens(self, input_ids: Tensor) -> None:
        low, high = (int(x) for x in torch.aminmax(input_ids))
        if low < 0 or high >= self.config.vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"input_ids holds token id {wrong}: the vocabulary has ids 0 to {self.config.vocab_size - 1}")

    def compile_loops(self) -> None:
        """Compile what surrounds the attention in every layer; it is done at the first passes, and takes a while."""
        layers = [module for module in self.modules() if isinstance(module, LoopedLayer)]
        if not layers:
            raise ValueError(f"compile=True: {type(self).__name__} has no layers that can be compiled")
        for layer in layers:
            layer.compile_parts()

    def new_cache(self, exited: Literal["last", "skip"] = "last", limit: int | None = None) -> LoopCache:
        return LoopCache(exited, limit)

    @classmethod
    def from_pretrained(cls, *args: Any, layout: bool = True, **kwargs: Any) -> Any:
        """As `CheckedModel`'s; with `layout` the weights of a model on a CPU are put as is fastest there."""
        read: Any = super().from_pretrained(*args, **kwargs)
        if layout:
            lay_out(read[0] if isinstance(read, tuple) else read)
        return read

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, state_dict: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """transformers' `save_pretrained`; weights that lie among others are written one by one."""
        if self.quantized is not None:
            raise ValueError(f"a model loaded with quantize={self.quantized!r} is not saved: save the one that it was made of")
        if state_dict is None and any(each.__dict__.get("beside") for each in self.modules()):
            state_dict = self.state_dict()
        if state_dict is not None:
            state_dict = {name: weight.contiguous() for name, weight in state_dict.items()}
        super().save_pretrained(save_directory, is_main_process, state_dict, *args, **kwargs)

    # -- the forward pass ---------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: LoopCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_loops: int | None = None,
        init_seed: int | Sequence[int] | None = None,
        output_hidden_states: bool | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """begin, advance × `num_loops`, readout, head. `hidden_states` are the latents after 0, 1, … loops."""
        if kwargs.pop("output_attentions", None):
            raise ValueError("output_attentions=True: attention weights are not kept; the latents are, by output_hidden_states")
        check_cache(past_key_values)
        told = {} if token_type_ids is None else self.prompt_options(input_ids, token_type_ids)
        num_loops = heard_loops(num_loops, kwargs)
        if past_key_values is None and use_cache and not self.training:  # only where it is asked for: it is large
            past_key_values = self.new_cache()
        state = self.begin(
            input_ids,
            past_key_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            init_seed=init_seed,
            **told,
        )
        latents = [state.hidden]
        for _ in range(checked_loops(num_loops, self.num_loops)):
            state = self.advance(state)
            if output_hidden_states:
                latents.append(state.hidden)
        hidden = self.readout(state)
        kept = hidden[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else hidden[:, logits_to_keep]
        logits = self.head(kept)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,  # pyright: ignore[reportArgumentType]
            past_key_values=past_key_values,
            hidden_states=tuple(latents) if output_hidden_states else None,  # pyright: ignore[reportArgumentType]
        )


def _padding(attention_mask: Tensor, batch: int, time: int, held: int) -> Tensor | None:
    """[batch, time], or with what a cache holds [batch, held + time], False for padding; None where nothing is padding."""
    told = attention_mask.bool()
    fits = told.ndim == 2 and told.shape[0] == batch and told.shape[1] >= time
    if fits and not torch.compiler.is_compiling() and bool(told.all()):
        return None  # however many tokens it speaks of
    shapes = list(dict.fromkeys([(batch, time), (batch, held + time)]))
    if told.shape not in shapes:
        allowed = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(
            f"attention_mask has shape {tuple(told.shape)}: for {batch} rows of {time} tokens it is {allowed}"
            f"{', with what the cache holds' if held else ''}"
        )
    return told


def positions_of(span: Span, valid: Tensor | None, device: torch.device) -> Tensor:
    """Positions [batch or 1, time] of the span's tokens: padding does not count."""
    if valid is not None:
        counted = (valid.long().cumsum(dim=1) - 1).clamp(min=0)  # [batch, columns]
        return counted[:, span.start : span.stop] if span.columns is None else counted.gather(1, span.columns)
    return column_index(span, device)


@torch.no_grad()
def loop_logits(
    model: LoopedModel, input_ids: Tensor, attention_mask: Tensor | None = None, loops: Sequence[int] | None = None
) -> Tensor:
    """Logits [batch, loop, time, vocab]: entry i is what the model says when it is stopped after `loops[i]` loops."""
    wanted = list(range(1, model.num_loops + 1)) if loops is None else list(loops)
    if not wanted or any(isinstance(loop, bool) or not isinstance(loop, int) or loop < 1 for loop in wanted):
        raise ValueError(f"loops={wanted}: whole numbers of loops, each at least 1")
    state = model.begin(input_ids, attention_mask=attention_mask)
    said: dict[int, Tensor] = {}
    for loop in range(1, max(wanted) + 1):
        state = model.advance(state)
        if loop in wanted:
            said[loop] = model.head(model.readout(state))
    return torch.stack([said[loop] for loop in wanted], dim=1)
