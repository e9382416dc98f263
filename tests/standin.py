"""Devices that compute on the CPU, say that they are elsewhere, and behave as a GPU would: `standin:0` and `standin:1`.

A tensor there refuses to be mixed with tensors of the CPU or of the other device. Inside `counting()` every wait of the host
for a device and every kernel is counted, waits by the line of loopcd that caused them. What is counted is what PyTorch does on
CUDA: reading a number, copying in either direction without `non_blocking`, indexing by a mask or by a tensor of the CPU.

    with devices():
        model = placed(tiny_huginn(), "standin:0")
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend  # pyright: ignore

import loopcd

NAME = "standin"
SOURCE = str(Path(loopcd.__file__).parent)
M = TypeVar("M", bound=nn.Module)

# one kernel each on a GPU, though PyTorch takes them apart for devices that it does not know
FUSED: tuple[Any, ...] = (F.scaled_dot_product_attention, F.rms_norm, torch.rms_norm)
# these ask the device how large their result is, or for the result itself
WAITING = {"nonzero", "masked_select", "_unique2", "unique_dim", "equal", "_local_scalar_dense", "multinomial"}
NO_KERNEL = {"_local_scalar_dense", "_unsafe_view", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty"}


class DeviceMix(RuntimeError):
    """What would fail on a machine with GPUs."""


@dataclass
class Counts:
    waits: Counter[str] = field(default_factory=Counter)  # by what and where, as in "item at decoding/loop.py:104"
    kernels: Counter[str] = field(default_factory=Counter)  # by operator


_counts: list[Counts] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what happens inside."""
    _counts.append(Counts())
    try:
        yield _counts[-1]
    finally:
        _counts.pop()


def _wait(what: str) -> None:
    for counts in _counts:
        counts.waits[f"{what} at {_place()}"] += 1


def _kernel(name: str) -> None:
    for counts in _counts:
        counts.kernels[name] += 1


def _place() -> str:
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(SOURCE):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename[len(SOURCE) + 1 :]}:{frame.f_lineno}"


class StandIn(Tensor):
    """A tensor elsewhere; `inner` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device | None = None, requires_grad: bool = False) -> "StandIn":
        if isinstance(inner, StandIn):  # as accelerate makes a parameter of a parameter's kind
            inner, device = inner.inner, inner.device
        made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
            requires_grad=False,
        )
        made.inner = inner.detach() if inner.requires_grad else inner
        return made

    def __init__(self, inner: Tensor, device: torch.device | None = None, requires_grad: bool = False) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"StandIn({self.inner!r}, {self.device})"

    def __format__(self, form: str) -> str:
        return self.inner.__format__(form) if self.dim() == 0 else repr(self)

    def tolist(self) -> Any:
        _wait("tolist")
        return self.inner.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"numpy() of a tensor on {self.device}: copy it to the CPU first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


# An operator takes and gives tensors, lists or tuples of them, and plain values: torch's own walk through trees would cost
# more than everything else here.


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _inner(value: Any) -> Any:
    if isinstance(value, StandIn):
        return value.inner
    return type(value)(map(_inner, value)) if type(value) in (list, tuple) else value


def _on_the_numbers(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*map(_inner, args), **{name: _inner(value) for name, value in kwargs.items()})


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on the numbers; its result is where it would be."""
    name = func.overloadpacket.__name__
    tensors = _tensors((*args, *kwargs.values()))
    there = [tensor for tensor in tensors if isinstance(tensor, StandIn)]
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if not there and (asked is None or asked.type != NAME):
        return func(*args, **kwargs)
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name in ("copy_", "_to_copy"):
        _copied(func, name, args, kwargs, asked)
    else:
        _check_devices(name, args, tensors)
        if name in WAITING:
            _wait("item" if name == "_local_scalar_dense" else name)
    if name not in NO_KERNEL and not func.is_view:
        _kernel(name)
    result = _on_the_numbers(func, args, kwargs)
    target = asked if asked is not None else there[0].device
    return result if target.type != NAME else _wrapped(result, there, target)


def _wrapped(result: Any, there: list[StandIn], target: torch.device) -> Any:
    known = {id(tensor.inner): tensor for tensor in there}  # what was changed in place stays what it was

    def wrap(value: Any) -> Any:
        if isinstance(value, Tensor):
            return known[id(value)] if id(value) in known else StandIn(value, target)
        return type(value)(map(wrap, value)) if type(value) in (list, tuple) else value

    return wrap(result)


def _copied(func: Any, name: str, args: Any, kwargs: Any, asked: torch.device | None) -> None:
    source = args[1] if name == "copy_" else args[0]
    target = args[0].device if name == "copy_" else (asked or args[0].device)
    if source.device.type == target.type:
        return
    if source.dim() == 0 and not isinstance(source, StandIn):
        return  # a number of the host travels with the kernel
    free = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
    if target.type == "cpu" or not free:
        _wait("copy to the host" if target.type == "cpu" else "copy to the device")


def _check_devices(name: str, args: Any, tensors: list[Tensor]) -> None:
    indexing = name in ("index", "index_put", "index_put_", "_index_put_impl_")
    if indexing:
        indices = [each for each in args[1] if each is not None]
        for each in indices:
            if isinstance(args[0], StandIn) and not isinstance(each, StandIn):
                _wait("index from the host")
            if each.dtype == torch.bool and isinstance(each, StandIn):
                _wait("index by a mask")
        apart = {id(each) for each in indices if isinstance(args[0], StandIn) and not isinstance(each, StandIn)}
        tensors = [tensor for tensor in tensors if id(tensor) not in apart]
    # a number on the CPU may go with a tensor anywhere, but not the other way round
    devices = {tensor.device for tensor in tensors if tensor.dim() > 0 or isinstance(tensor, StandIn)}
    if len(devices) > 1:
        raise DeviceMix(f"{name} of tensors on {' and '.join(sorted(map(str, devices)))} at {_place()}")


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """What does not reach the dispatcher in one piece."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FUSED:
            return self._fused(func, args, kwargs)
        if func is torch.tensor and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == NAME:
            return torch.tensor(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        return func(*args, **kwargs)

    @staticmethod
    def _fused(func: Any, args: Any, kwargs: Any) -> Any:
        tensors = _tensors((*args, *kwargs.values()))
        there = [tensor for tensor in tensors if isinstance(tensor, StandIn)]
        if not there:
            return func(*args, **kwargs)
        _check_devices(func.__name__, args, tensors)
        _kernel(func.__name__)
        with torch._C.DisableTorchFunction():
            result = _on_the_numbers(func, args, kwargs)
        return StandIn(result, there[0].device)


class _Hook(torch._C._acc.PrivateUse1Hooks):  # pyright: ignore[reportAttributeAccessIssue]
    """The devices are there only for those who name them: what looks for an accelerator finds none, in other tests too."""

    def is_available(self) -> bool:
        return False

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


@cache
def _registered() -> None:
    _setup_privateuseone_for_python_backend(NAME, hook=_Hook())
    getattr(torch, NAME).get_amp_supported_dtype = list  # gradient checkpointing asks every backend, wherever its tensors are


@contextmanager
def devices() -> Iterator[None]:
    """Inside, `standin:0` and `standin:1` can be named wherever a device is."""
    _registered()
    overwriting = torch.__future__.get_overwrite_module_params_on_conversion()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_Dispatch())
        stack.enter_context(_Functions())
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # a tensor of another kind takes its place
        try:
            yield
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwriting)


def placed(model: M, where: str | Mapping[str, str]) -> M:
    """The model on a device, or split: `where` names the device of each block, and all else is on the first device.

    A split model gets accelerate's own hooks, as `device_map` gives it.
    """
    by_name = {"": where} if isinstance(where, str) else {"": f"{NAME}:0", **where}
    moved: dict[int, nn.Parameter] = {}
    for name, module in model.named_modules():
        device = torch.device(_longest(name, by_name))
        for key, weight in list(module._parameters.items()):
            if weight is not None:
                moved.setdefault(id(weight), nn.Parameter(StandIn(weight.data, device), requires_grad=False))
                module._parameters[key] = moved[id(weight)]
        for key, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[key] = StandIn(buffer, device)
    if not isinstance(where, str):
        from accelerate.hooks import attach_align_device_hook_on_blocks

        attach_align_device_hook_on_blocks(
            model,
            execution_device={name: torch.device(each) for name, each in by_name.items()},
            offload=dict.fromkeys(where, False),
            skip_keys=getattr(model, "_skip_keys_device_placement", None),
        )
    return model


def _longest(name: str, by_name: Mapping[str, str]) -> str:
    fitting = [key for key in by_name if key == "" or name == key or name.startswith(key + ".")]
    return by_name[max(fitting, key=len)]


def split(model: Any, second: Callable[[str], bool]) -> dict[str, str]:
    """A device map of whole layers and single modules, of which those that `second` chooses are on the second device."""
    whole = set(model._no_split_modules or ())
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if any(name.startswith(f"{block}.") for block in found):
            continue
        if second(name) or type(module).__name__ in whole or not list(module.children()):
            found[name] = f"{NAME}:{int(second(name))}"
    return found
