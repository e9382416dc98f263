"""How the weights of linear layers lie in memory, and who multiplies by them: timed on this machine, not assumed.

A product with one row waits for the weight; which order of the weight it streams fastest (row by row, or column by column), and
who multiplies fastest (torch's own product, oneDNN's, or the BLAS that numpy brings), for one row, two, a few or many, differs
from processor to processor and from shape to shape. So the few distinct shapes of a model are timed once in a process. Weights
that are multiplied by the same input (`together`) are put side by side and multiplied at once.

Nothing is kept twice: a weight in another order, or beside others, is the same parameter of the same shape under the same name.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_info
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from loopcd.models.memory import keep_freed

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of x [..., inputs], weight [outputs, inputs] and bias

SMALLEST = 2**18  # elements; below, a product of a few rows costs little more than its call
TINY = 2**13  # elements; below, any product does
TWO, FEW, SEVERAL, MANY = 2, 4, 8, 32  # from so many rows on, up to the next, a product is chosen of its own
MIDDLE, PROMPT = 16, 96  # rows that are timed for several and for many; for the others the first
UNPACKED = 2**19  # multiplications in a part of numpy's product
CLEAR, STEADY = 0.93, 0.98  # of the time: what is nearer may be noise; of many rows, which do not wait for memory, less is
SCRATCH = 3 * 2**24  # bytes that timing takes: more than a processor's cache, unless all weights together are less
PATIENCE, TRIES = 0.02, 64  # seconds, and turns, for products that are timed by turns
SURE = 0.75  # of the time, for small weights: who multiplies them should not hang on a moment, as the last bits of logits do
BEATEN = 1.25  # times the least: a product that took so long needs no further turn


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def by_numpy(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """In parts that its BLAS multiplies as they lie: what is larger it first copies into an order of its own, which for a few
    rows takes longer than the product."""
    matrix, rows = weight.detach().numpy(), x.numpy().reshape(-1, x.shape[-1])
    outputs, inputs, count = *matrix.shape, len(rows)
    if count == 1:
        made = np.dot(matrix, rows[0])
    elif matrix.flags.c_contiguous:
        part = _dividing(outputs, min(64, UNPACKED // (count * inputs)))
        made = np.matmul(rows, matrix.reshape(-1, part, inputs).transpose(0, 2, 1))  # [parts, rows, outputs of each]
        made = made.transpose(1, 0, 2).reshape(count, outputs)
    elif matrix.T.flags.c_contiguous:
        part = _dividing(inputs, max(16, 2**15 // outputs))
        made, product = np.zeros((count, outputs), np.float32), np.empty((count, outputs), np.float32)
        for start in range(0, inputs, part):
            made += np.matmul(rows[:, start : start + part], matrix.T[start : start + part], out=product)
    else:
        made = np.dot(rows, matrix.T)
    found = torch.from_numpy(made).view(*x.shape[:-1], -1)
    return found if bias is None else found.add_(bias)


def _dividing(size: int, most: int) -> int:
    """The largest power of two that divides a size and is at most `most`."""
    return 1 << min((size & -size).bit_length(), max(1, most).bit_length()) - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """What is fastest for one shape: the weight's order, and who multiplies one row, two or three, a few, several, many."""

    columns: bool = False
    one: Product = by_torch
    two: Product = by_torch
    few: Product = by_torch
    several: Product = by_torch
    many: Product = by_torch

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if rows < FEW:
            chosen = self.one if rows == 1 else self.two
        else:
            chosen = self.few if rows < SEVERAL else self.several if rows < MANY else self.many
        return (chosen if chosen is by_torch or _usual(chosen, x, weight) else by_torch)(x, weight, bias)


PLAIN = Layout()


def _usual(product: Product, x: Tensor, weight: Tensor) -> bool:
    """Whether another product than torch's may be called: nobody needs a gradient, another dtype or a traced graph."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if type(x) is not Tensor or x.requires_grad or x.numel() == 0:
        return False
    known = (torch.float32,) if product is by_numpy else (torch.float32, torch.bfloat16)  # a model may have been converted
    return x.is_cpu and weight.is_cpu and x.dtype == weight.dtype and x.dtype in known


class LaidOutLinear(nn.Linear):
    """A linear layer whose product is chosen by the number of rows; all else is nn.Linear's."""

    layout: Layout
    usual: int  # an input of fewer elements is multiplied as nn.Linear does it, without a look at its rows

    def forward(self, input: Tensor) -> Tensor:
        own = self._parameters  # found sooner than attributes, which are all that copies of DataParallel have
        if input.numel() < self.usual and (weight := own.get("weight")) is not None:
            return F.linear(input, weight, own["bias"])
        return self.layout.product(input, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Weights that lie side by side in one storage, seen as one [their outputs, inputs]; not copied along with a model."""

    weight: Tensor
    parts: tuple[Tensor, ...]  # of the weight: each layer's own
    layout: Layout

    def holds(self, linears: Sequence[nn.Module]) -> bool:
        """Whether these layers' weights are still the ones that were joined, with nothing hung on the layers."""
        for linear, part in zip(linears, self.parts, strict=True):
            if not (is_plain(linear) and _is_part(linear._parameters.get("weight"), part)):
                return False
        return True

    def free(self, linears: Sequence[nn.Module]) -> None:
        """Forget the joined weights where a layer has another one, of another type or elsewhere: else both would be kept."""
        weights = [linear._parameters.get("weight") for linear in linears]  # None in DataParallel's copies
        if any(weight is not None and not _is_part(weight, part) for weight, part in zip(weights, self.parts, strict=True)):
            linears[0].__dict__.pop("beside", None)

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())


def _is_part(weight: Tensor | None, part: Tensor) -> bool:
    """Whether a weight is this part of joined ones; those of other kinds and on other devices cannot be asked."""
    return type(weight) is nn.Parameter and weight.is_cpu and weight.is_set_to(part)


def is_plain(linear: Any) -> bool:
    """Whether a layer is its weight and bias and nothing else: no adapter, no hook, not quantised."""
    return type(linear) in (nn.Linear, LaidOutLinear) and not is_watched(linear)


def is_watched(module: nn.Module) -> bool:
    """Whether somebody looks on, or steps in, where a module is called: by a hook, on it or on all, or by another forward."""
    own = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    return bool(own or _global_forward_hooks or _global_forward_pre_hooks)


def together(x: Tensor, *linears: nn.Module) -> Tensor:
    """What the layers make of x, one after the other in the last dimension: by one product where their weights were joined."""
    beside = linears[0].__dict__.get("beside")
    if beside is not None and not torch.compiler.is_compiling():
        if not beside.holds(linears):
            beside.free(linears)
        elif not torch.is_grad_enabled():
            return beside.layout.product(x, beside.weight)
    return torch.cat([linear(x) for linear in linears], dim=-1)


# -- choosing ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def lay_out(model: Any) -> None:
    """Put the weights of a model on a CPU into the order that is fastest here; layers that name `joined` ones are joined. What
    passes free is kept for the next ones."""
    keep_freed()
    head = model.get_output_embeddings()
    joined = [group for module in model.modules() for group in _groups(module)]
    inside = {id(linear) for group in joined for linear in group}
    alone = [[module] for module in model.modules() if _movable(module) and id(module) not in inside]
    kinds: dict[tuple[Any, ...], list[list[nn.Linear]]] = {}
    for group in [*joined, *alone]:
        weight = group[0].weight
        shape = (sum(linear.out_features for linear in group), weight.shape[1])
        # the head's rows are looked up one by one, and may be the embeddings': it keeps its order
        kinds.setdefault((*shape, weight.dtype, group[0] is head), []).append(group)
    onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    scratch = min(SCRATCH, sum(linear.weight.nbytes for groups in kinds.values() for group in groups for linear in group))
    for (outputs, inputs, dtype, fixed), groups in kinds.items():
        layout, size = PLAIN, outputs * inputs
        if onednn and size >= SMALLEST and dtype in (torch.float32, torch.bfloat16):
            layout = timed(outputs, inputs, dtype, fixed, torch.get_num_threads(), scratch)
        elif onednn and size >= TINY and dtype == torch.float32:
            layout = timed_small(outputs, inputs, torch.get_num_threads(), scratch)
        for group in groups:
            _apply(group, layout)


def _groups(module: nn.Module) -> Iterable[list[nn.Linear]]:
    """The layers of a module that read the same input, by the names that its class gives as `joined`."""
    for names in getattr(type(module), "joined", ()):
        group = [getattr(module, name) for name in names]
        weights = [linear.weight for linear in group if _movable(linear) and linear.bias is None]
        if len(weights) == len(group) and len({(weight.dtype, weight.shape[1]) for weight in weights}) == 1:
            yield group


def _movable(module: Any) -> bool:
    return is_plain(module) and type(module.weight) is nn.Parameter and module.weight.is_cpu


def _apply(group: list[nn.Linear], layout: Layout) -> None:
    first = group[0]
    if len(group) == 1:
        if layout.columns:
            first.weight.data = first.weight.t().contiguous().t()
        if layout != Layout(layout.columns):
            first.__class__ = LaidOutLinear
            first.layout = layout  # pyright: ignore
            first.usual = MANY * first.in_features if layout == Layout(layout.columns, many=layout.many) else 0  # pyright: ignore
        return
    sizes, inputs, dtype = [linear.out_features for linear in group], first.in_features, first.weight.dtype
    whole = torch.empty(inputs, sum(sizes), dtype=dtype).t() if layout.columns else torch.empty(sum(sizes), inputs, dtype=dtype)
    parts = whole.split(sizes)
    for linear, part in zip(group, parts, strict=True):
        part.copy_(linear.weight)
        linear.weight.data = part
    first.__dict__["beside"] = SideBySide(whole, parts, layout)


@lru_cache(maxsize=256)
@torch.inference_mode()
def timed(outputs: int, inputs: int, dtype: torch.dtype, fixed: bool, threads: int, scratch: int) -> Layout:
    """The layout for a shape, found by timing it with few rows and with many; `fixed` weights stay row by row."""
    orders, alone = (False,) if fixed else (False, True), _numpy_works_alone()
    size = outputs * inputs
    memory = torch.full((max(1, scratch // (size * dtype.itemsize)), size), 0.01, dtype=dtype)
    # the same memory serves for both orders
    weights = {
        columns: [part.view(inputs, outputs).t() if columns else part.view(outputs, inputs) for part in memory]
        for columns in orders
    }

    def best(columns: bool, rows: int) -> tuple[float, Product]:
        """The time that is compared, and whose it is; torch's own product is left only for what is clearly faster."""
        x = torch.full((1, rows, inputs), 0.01, dtype=dtype)
        products = [by_torch, by_onednn, *([by_numpy] if rows < MANY and dtype == torch.float32 and alone else [])]
        seconds, clear = _raced(products, x, weights[columns]), STEADY if rows == PROMPT else CLEAR
        times = {product: taken / (1 if product is by_torch else clear) for product, taken in seconds.items()}
        fastest = min(times, key=lambda product: times[product])
        return times[fastest], fastest

    one, few = ({columns: best(columns, rows) for columns in orders} for rows in (1, FEW))
    # one row counts most: every text is written token by token, and only drafts and small batches share a pass
    cost = {columns: 2 * one[columns][0] + few[columns][0] / FEW for columns in orders}
    columns = not fixed and cost[True] < CLEAR * cost[False]
    two, several, many = (best(columns, rows)[1] for rows in (TWO, MIDDLE, PROMPT))
    return Layout(columns, one[columns][1], two, few[columns][1], several, many)


@lru_cache(maxsize=256)
@torch.inference_mode()
def timed_small(outputs: int, inputs: int, threads: int, scratch: int) -> Layout:
    """The layout for a shape so small that only with many rows it matters who multiplies: some processors' torch takes twice as
    long as oneDNN."""
    memory = torch.full((max(1, scratch // (4 * outputs * inputs)), outputs, inputs), 0.01)
    seconds = _raced([by_torch, by_onednn], torch.full((1, PROMPT, inputs), 0.01), list(memory))
    return Layout(many=by_onednn) if seconds[by_onednn] < SURE * seconds[by_torch] else PLAIN


def _raced(products: Sequence[Product], x: Tensor, weights: list[Tensor]) -> dict[Product, float]:
    """The least time of each product over many short tries, by turns and by the thread's own clock: what disturbs only adds.

    Every try takes the next weight: until one comes again, the others have driven it out of a processor's cache."""
    line, least, began = itertools.cycle(weights), dict.fromkeys(products, float("inf")), time.perf_counter()
    for tries in range(TRIES):
        for product in products:
            weight, start = next(line), time.thread_time()
            product(x, weight, None)
            least[product] = min(least[product], time.thread_time() - start)
        if tries > 3:
            products = [product for product in products if least[product] < BEATEN * min(least.values())]
            if len(products) == 1 or time.perf_counter() - began > PATIENCE:
                break
    return least


def _numpy_works_alone() -> bool:
    """Whether numpy's BLAS keeps to the thread that calls it, as under OMP_NUM_THREADS=1: it does not ask torch how many
    threads there may be, and several of its own would stand in the way of torch's."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return bool(pools) and all(pool["num_threads"] == 1 for pool in pools)
