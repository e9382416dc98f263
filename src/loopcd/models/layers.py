"""What the families share: the norm, rotary positions, attention and its masks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from loopcd.models.layout import is_plain, together
from loopcd.models.slots import Span, column_index


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, cast back to the working dtype, then times the weight; the last two in one elsewhere
    than on a CPU, where torch has a kernel for the whole."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32 and x.is_cpu:  # torch's norm is in float32 inside
            return F.rms_norm(x, self.weight.shape, None, self.eps) * self.weight
        if x.is_cpu and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # torch has no fused kernel of this norm for CPUs; for one token its composite costs more than the attention
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            scale = torch.addcmul(_scalar(self.eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()
            return torch.mul(x, scale).mul_(self._parameters["weight"])  # pyright: ignore[reportArgumentType]
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@lru_cache(maxsize=8)
def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")  # it is kept, and torch's defaults may change


@torch.no_grad()
def init_weights(module: nn.Module, std: float) -> None:
    """As most families do it."""
    if isinstance(module, nn.Linear | nn.Embedding):
        init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, RMSNorm):
        init.ones_(module.weight)


@dataclass(frozen=True)
class Llama3Scaling:
    """Slower rotations for the long wavelengths, so that a model trained on short texts reads longer ones."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    @classmethod
    def read(cls, fields: Mapping[str, Any] | None) -> "Llama3Scaling | None":
        """From a configuration's `rope_scaling`: None where it names no scaling."""
        kind = None if not fields else fields.get("rope_type", fields.get("type"))
        if not fields or kind == "default":
            return None
        wanted = tuple(cls.__dataclass_fields__)
        if kind != "llama3" or any(not isinstance(fields.get(name), int | float) for name in wanted):
            raise ValueError(f"rope_scaling={dict(fields)!r}: none, or rope_type 'llama3' with {', '.join(wanted)}")
        return cls(*(fields[name] for name in wanted))

    def __call__(self, frequencies: Tensor) -> Tensor:
        """Frequencies [head_dim / 2] whose wavelength is past the trained length are divided by `factor`, short ones stay."""
        turns = self.original_max_position_embeddings * frequencies / (2 * pi)  # in the trained length
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


class RotaryTable:
    """cos and signed sin of the rotary angles, looked up by position; made in float32 as far as positions were asked for.

    `paired` says which elements of a head are rotated together: "neighbours" (2i, 2i + 1), or "halves" (i, i + head_dim / 2).
    It is no buffer of the model: it follows from the configuration, and a checkpoint's rounded copy must not replace it.
    """

    def __init__(
        self, base: float, head_dim: int, paired: Literal["neighbours", "halves"], scaling: Llama3Scaling | None = None
    ) -> None:
        self.base, self.head_dim, self.paired, self.scaling = base, head_dim, paired, scaling
        self._made: dict[tuple[torch.device, torch.dtype], tuple[Tensor, ...]] = {}

    def __call__(self, positions: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin, each [rows, time, 1, head_dim], of positions [rows, time] below `length`."""
        cos, sin = self._tables(length, positions.device, dtype)
        return cos[positions], sin[positions]

    def turns(self, positions: Tensor, length: int) -> Tensor:
        """e^(i · angle), [rows, time, 1, head_dim / 2]: what rotates a pair that is taken for a complex number."""
        (turns,) = self._tables(length, positions.device, torch.complex64)
        return turns[positions]

    def _tables(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Those of at least so many positions. What was made is used, not what is kept: threads may make them at once."""
        key, made = (device, dtype), self._made.get((device, dtype))
        if made is None or len(made[0]) < length:
            with torch.inference_mode(False), torch.no_grad():  # else a table made while decoding could not serve training
                made = self._make(max(256, 2 * length), device, dtype)
            kept = self._made.get(key)
            if kept is None or len(kept[0]) < len(made[0]):
                self._made[key] = made
        return made

    def _make(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        angles = self._angles(length, device)
        if dtype.is_complex:
            return (torch.polar(torch.ones_like(angles), angles)[:, None],)
        cos, sin = angles.cos(), angles.sin()  # [length, head_dim / 2]
        if self.paired == "halves":
            both = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        else:
            both = torch.stack([cos, cos], dim=-1).flatten(1), torch.stack([-sin, sin], dim=-1).flatten(1)
        return both[0][:, None].to(dtype), both[1][:, None].to(dtype)

    def _angles(self, length: int, device: torch.device) -> Tensor:
        """[length, head_dim / 2]"""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
        frequencies = 1.0 / self.base**exponents
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        return torch.arange(length, device=device)[:, None].float() * frequencies


def rotate_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of the last dimension; `sin` carries the sign of each element."""
    swapped = x.view(*x.shape[:-1], x.shape[-1] // 2, 2).flip(-1).view(x.shape)
    return torch.addcmul(x * cos, swapped, sin)


def rotate_complex(x: Tensor, turns: Tensor) -> Tensor:
    """As `rotate_neighbours`, the pairs of x (float32) taken for complex numbers: one kernel."""
    return (x.view(torch.complex64) * turns).view(torch.float32)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of the last dimension; `sin` carries the sign of each element."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def add_product(x: Tensor, linear: nn.Module, y: Tensor) -> Tensor:
    """linear(y) + x, where that can be done by one kernel written over x, which nobody may need any more."""
    plain: Any = linear if is_plain(linear) else None
    if plain is None or plain.bias is not None or not x.is_contiguous() or not x.dtype == y.dtype == plain.weight.dtype:
        return linear(y) + x
    x.view(-1, x.shape[-1]).addmm_(y.reshape(-1, y.shape[-1]), plain.weight.t())
    return x


def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention by transformers' interface: [rows, heads, time, head_dim] -> [rows, time, heads × head_dim]."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(_implementation(module.config), eager_attention)
    plain = mask is None and query.shape[2] > 1  # what is seen is for the function to say
    if function is sdpa_attention_forward and not plain and module.num_key_value_groups == 1:
        # the same call without what surrounds it, which for one token takes longer than the attention
        output = F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
        return output.reshape(*output.shape[:2], -1)
    output, _ = function(module, query, key, value, mask, scaling=query.shape[-1] ** -0.5, dropout=0.0)
    return output.view(*output.shape[:2], -1)


def _implementation(config: Any) -> str:
    """The attention that a configuration names; read past the configuration's own lookup of attributes, which takes long."""
    found = object.__getattribute__(config, "__dict__").get("_attn_implementation_internal")
    return found or config._attn_implementation or "sdpa"


class LoopedLayer(nn.Module):
    """A layer in three parts: `before` the attention, the attention with its cache, and `after` it.

    The outer parts are pure functions of tensors, so they can be compiled; the attention in the middle grows with the text.
    What runs in every loop takes its modules from `_modules`: as attributes they are found by a search in Python, which for
    a small model's token adds up to a loop.
    """

    COMPILED_TIME = 16  # tokens up to which a pass goes through the compiled parts: decoding and drafting, not prompts
    can_spare: ClassVar[bool] = False  # whether `after` can be told that its input may be written over
    is_causal = True  # this and the next two are what transformers' attention functions ask of a module
    gradient_checkpointing = False  # set by transformers' `gradient_checkpointing_enable`, with the function that does it
    _gradient_checkpointing_func: Callable[..., Any]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.compiled: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, time, head_dim], of x [rows, time, width]."""
        raise TypeError(f"{type(self).__name__} does not say what it attends with")

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from its input and the attention's."""
        raise TypeError(f"{type(self).__name__} does not say what follows the attention")

    def compile_parts(self) -> None:
        self.compiled = (torch.compile(self.before, dynamic=True), torch.compile(self.after, dynamic=True))

    def forward(
        self, x: Tensor, rotary: Any, mask: Tensor | None, slot: Any, span: Span, last: bool = False, spare: bool = False
    ) -> Tensor:
        """[rows, time, width], or with `last` what comes out for the last token only: of the others, keys and values.

        `spare`: nobody needs x any more, so it may be written over.
        """
        if self.gradient_checkpointing and self.training and slot is None:
            return self._gradient_checkpointing_func(self._output, x, rotary, mask, slot, span, last)  # transformers sets it
        return self._output(x, rotary, mask, slot, span, last, spare)

    def _output(
        self, x: Tensor, rotary: Any, mask: Tensor | None, slot: Any, span: Span, last: bool, spare: bool = False
    ) -> Tensor:
        before, after = self.before, self.after
        if self.compiled is not None and x.shape[1] <= self.COMPILED_TIME:
            before, after = self.compiled
        elif spare:
            after = partial(after, spare=True)  # pyright: ignore[reportCallIssue]
        query, key, value = before(x, *rotary)
        if hasattr(slot, "attend"):  # texts at places of their own
            return after(x, slot.attend(self, query, key, value))
        if slot is not None:
            key, value = slot.update(key, value, span)
        if last and x.shape[1] > 1:
            x, query = x[:, -1:], query[:, :, -1:]
            mask = mask[:, :, -1:] if mask is not None and mask.ndim == 4 else mask
        return after(x, attention(self, query, key, value, mask))


class LlamaAttention(nn.Module):
    """The projections of Llama's attention, under its names; Ouro's and Nanbeige's too."""

    joined = (("q_proj", "k_proj", "v_proj"),)

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, time, head_dim], with the positions in them."""
        rows, time, _ = x.shape
        own: Any = self._modules
        qkv = together(x, own["q_proj"], own["k_proj"], own["v_proj"]).view(rows, time, -1, self.head_dim)
        qk, value = torch.split_with_sizes(qkv, (self.heads + self.kv_heads, self.kv_heads), dim=2)
        query, key = torch.split_with_sizes(rotate_halves(qk, cos, sin).transpose(1, 2), (self.heads, self.kv_heads), dim=1)
        return query, key, value.transpose(1, 2)


class LlamaMLP(nn.Module):
    joined = (("gate_proj", "up_proj"),)

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self._modules
        gate, up = together(x, own["gate_proj"], own["up_proj"]).chunk(2, dim=-1)
        return own["down_proj"](F.silu(gate) * up)


def eager_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attention written out, with the probabilities in float32."""
    if module.num_key_value_groups > 1:
        key = key.repeat_interleave(module.num_key_value_groups, dim=1)
        value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling  # [rows, heads, time, columns]
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def causal_mask(span: Span, device: torch.device, valid: Tensor | None, implementation: str) -> Tensor | None:
    """Which columns each new token sees, in the form that the attention implementation takes.

    None where plain causal attention is meant. Otherwise bool [rows or 1, 1, time, columns]; flash attention takes
    [rows, columns] instead, and only where every row has the same columns.
    """
    if "flash" in implementation:
        if span.columns is not None:
            raise ValueError(f"attn_implementation={implementation!r} cannot serve rows of different lengths: use 'sdpa'")
        return valid
    plain = span.time == 1 or (span.start == 0 and implementation != "eager")
    if valid is None and span.columns is None and plain:
        return None
    own = column_index(span, device)  # [rows or 1, time]
    columns = torch.arange(span.stop, device=device)
    mask = columns <= own[..., None]  # [rows or 1, time, columns]
    if valid is not None:
        # a padded token still sees itself: a softmax over nothing would be NaN
        mask = mask & (valid.to(device)[:, None, :] | (columns == own[..., None]))
    return mask[:, None]
