"""The user's model as a copy of fake parameters on the phantom device."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from ..base.errors import CaptureError
from ..base.patching import Patch, patched
from ..base.precision import Precision
from .draws import STARTS, Draws
from .quantized import is_quantized, parameters_of_any_class, quantized

ModelSource = Any  # nn.Module | Callable[[], nn.Module]



class Template(NamedTuple):
    """The model as it was given, or as its function builds it."""

    model: nn.Module
    #: By torch.compile, or its own compile().
    compiled: bool


def template(source: ModelSource, note: Callable[[str], None]) -> Template:
    if isinstance(source, nn.Module):
        model = source
    elif callable(source):
        with building():
            model = source()
    else:
        model = source
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"`model` is {type(source).__name__} and gave no torch.nn.Module",
            hint="Pass a module, or a function without arguments that builds one",
        )
    return Template(_unwrapped(model, note), _is_compiled(model))


@contextlib.contextmanager
def building(draws: Draws | None = None) -> Iterator[None]:
    """While this is open modules of fake tensors are made cheaply, and can be moved. `draws`: the
    random numbers that they would begin with."""
    moving = Patch(nn.Module, "_apply", _apply)
    with patched([*_cheap_starts(draws), moving, *parameters_of_any_class()]):
        yield


def _cheap_starts(draws: Draws | None) -> list[Patch]:
    def start(name: str) -> Any:
        def same(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if draws is not None:
                draws.start(name, tensor)
            return tensor

        return same

    return [Patch(nn.init, name, start(name)) for name in STARTS if hasattr(nn.init, name)]


def _is_compiled(model: nn.Module) -> bool:
    while type(model).__name__ in _WRAPPERS:
        if type(model).__name__ == "OptimizedModule":
            return True
        model = getattr(model, _WRAPPERS[type(model).__name__])
    return bool(getattr(model, "_compiled_call_impl", None))


_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
}


def _unwrapped(model: nn.Module, note: Callable[[str], None]) -> nn.Module:
    while type(model).__name__ in _WRAPPERS:
        kind = type(model).__name__
        if kind != "OptimizedModule":
            note(f"the model is wrapped in {kind}: the model inside is captured, on one GPU")
        model = getattr(model, _WRAPPERS[kind])
    inner = (module for module in model.modules() if module is not model)
    if any(getattr(module, "_compiled_call_impl", None) for module in inner):
        note("modules inside the model are compiled, which is left out: told is eager mode")
    return model


class OnDevice(NamedTuple):
    """A copy of the model on the device, and which parameter became which."""

    model: nn.Module
    #: By the id of the original tensor.
    tensors: dict[int, torch.Tensor]
    #: What was moved as it was, and only then brought into another memory format: by the id of the
    #: tensor that it became.
    reordered: dict[int, torch.Tensor]


def on_device(
    model: nn.Module, precision: Precision, memo: dict[int, Any] | None = None
) -> OnDevice:
    """Copies everything but the tensors, which are replaced: ties, strides, types and
    `requires_grad` stay as they are."""
    tensors: dict[int, torch.Tensor] = {}
    reordered: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and id(tensor) not in tensors:
                first = _moved(tensor, precision.weights)
                last = _reordered(first) if precision.channels_last else first
                tensors[id(tensor)] = quantized(tensor, _like(tensor, last))
                if last is not first:
                    reordered[id(tensors[id(tensor)])] = first
    memo = dict(tensors) if memo is None else {**memo, **tensors}
    try:
        copied = copy.deepcopy(model, memo)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"this {type(model).__name__} cannot be copied: {error}",
            hint="Pass a function that builds it instead of the module itself",
        ) from error
    return OnDevice(copied, tensors, reordered)


def _moved(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    if isinstance(tensor, UninitializedTensorMixin):
        raise CaptureError(
            "the model has parameters that get their shape from the first batch",
            hint="Run one batch through it first, or give the layers their sizes",
        )
    if dtype is None or not tensor.is_floating_point():
        dtype = tensor.dtype
    strides = tensor.stride()
    if not _dense(tensor):  # an expanded or cut one becomes dense when it is moved
        strides = torch.empty(tensor.shape, device="meta").stride()
    return torch.empty_strided(tensor.shape, strides, dtype=dtype, device="cuda")


def _reordered(tensor: torch.Tensor) -> torch.Tensor:
    """As `module.to(memory_format=torch.channels_last)` does it."""
    if tensor.dim() != 4 or not tensor.is_floating_point():
        return tensor
    made = torch.empty_like(tensor, memory_format=torch.channels_last)
    return tensor if made.stride() == tensor.stride() else made


def _like(tensor: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """A parameter where the original is one, with all that hangs on it."""
    if isinstance(tensor, nn.Parameter):
        moved = nn.Parameter(moved, tensor.requires_grad)
    # Marks that optimizers and trainers put on parameters.
    for key, value in getattr(tensor, "__dict__", {}).items():
        if key not in moved.__dict__ and not key.startswith("_fake"):
            with contextlib.suppress(Exception):
                moved.__dict__[key] = value
    return moved


def _dense(tensor: torch.Tensor) -> bool:
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape)):
        if length == 1:
            continue
        if stride != size:
            return False
        size *= length
    return True


def tensors_in_order(model: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(kind, name, tensor) in the order in which `module.to(device)` makes them: children first,
    then own parameters, then own buffers. One that is tied comes again and again."""
    yield from _in_order(model, "")


def _in_order(module: nn.Module, prefix: str) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, child in module.named_children():
        yield from _in_order(child, f"{prefix}{name}.")
    for kind, table in (("parameter", module._parameters), ("buffer", module._buffers)):
        for name, tensor in table.items():
            if tensor is not None:
                yield kind, prefix + name, tensor


_applied: dict[int, torch.Tensor] | None = None
#: Called when a module has been moved or converted, with what each tensor became, by its id.
on_applied: Callable[[dict[int, torch.Tensor]], None] | None = None


def _apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """nn.Module._apply for fake tensors, which cannot be exchanged in place: `.to("cuda")` and
    `.half()` in a function that builds a model. A tied parameter stays tied."""
    global _applied
    outermost = _applied is None
    if _applied is None:
        _applied = {}
    try:
        if recurse:
            for child in self.children():
                child._apply(fn)
        for table in (self._parameters, self._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    table[key] = _applied_once(tensor, fn, _applied)
        if outermost and on_applied is not None:
            on_applied(_applied)
    finally:
        if outermost:
            _applied = None
    return self


def _applied_once(
    tensor: torch.Tensor, fn: Callable[[Any], Any], known: dict[int, torch.Tensor]
) -> Any:
    if id(tensor) in known:
        return known[id(tensor)]
    with torch.no_grad():
        made = fn(tensor)
    if isinstance(tensor, nn.Parameter) and made is not tensor and not is_quantized(made):
        made = _like(tensor, made)
    if made is not tensor:
        made = quantized(tensor, made)
    known[id(tensor)] = known[id(made)] = made
    return made
