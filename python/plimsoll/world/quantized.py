"""Weights that bitsandbytes keeps in 4 or 8 bits. They are made from whole ones when they come to a
GPU, by operators that run without data; only its classes of parameters do not take fake tensors."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ..base.patching import Patch

_SETTINGS = ("blocksize", "compress_statistics", "quant_type", "quant_storage")
#: What the library's classes have beside the data: a fake tensor has things of its own there.
_KEPT = (
    *_SETTINGS, "quant_state", "bnb_quantized", "module", "has_fp16_weights", "CB", "SCB"
)  # fmt: skip


def parameters_of_any_class() -> list[Patch]:
    """A parameter of bitsandbytes of a fake tensor is a plain one that knows how it is to be kept.
    What its class sets on it stays; where it goes to a GPU it becomes what is kept there."""
    make = torch.Tensor._make_subclass  # type: ignore[attr-defined]

    def made(cls: type, data: Any, requires_grad: bool = False, *more: Any, **named: Any) -> Any:
        if not isinstance(data, FakeTensor) or not cls.__module__.startswith("bitsandbytes."):
            return make(cls, data, requires_grad, *more, **named)
        return nn.Parameter(data, requires_grad and data.is_floating_point())

    to, cuda = torch.Tensor.to, torch.Tensor.cuda

    def brought(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return quantized(tensor, to(tensor, *args, **kwargs))

    def brought_to_gpu(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return quantized(tensor, cuda(tensor, *args, **kwargs))

    return [
        Patch(torch.Tensor, "_make_subclass", staticmethod(made)),
        Patch(torch.Tensor, "to", brought),
        Patch(torch.Tensor, "cuda", brought_to_gpu),
    ]


def quantized(source: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """`moved` is what `source` has become. On a GPU it is kept in few bits, if it is to be."""
    if "bnb_quantized" not in source.__dict__ and "has_fp16_weights" not in source.__dict__:
        return moved
    if moved.device.type != "cuda" or not moved.is_floating_point():
        return moved
    settings = {k: v for k, v in source.__dict__.items() if k in _KEPT}
    if settings.get("bnb_quantized") is False and "quant_type" in settings:
        functional: Any = sys.modules["bitsandbytes.functional"]
        given = {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
        data, state = functional.quantize_4bit(moved.detach(), **given)
        return _kept(data, {**settings, "quant_state": state, "bnb_quantized": True})
    if settings.get("has_fp16_weights") is False and settings.get("SCB") is None:
        functional = sys.modules["bitsandbytes.functional"]
        data, scales, _ = functional.int8_vectorwise_quant(moved.detach().to(torch.float16))
        return _kept(data, {**settings, "CB": data, "SCB": scales})
    return moved


def is_quantized(tensor: torch.Tensor) -> bool:
    known = tensor.__dict__
    return known.get("bnb_quantized") is True or known.get("SCB") is not None


def _kept(data: torch.Tensor, settings: dict[str, Any]) -> nn.Parameter:
    parameter = nn.Parameter(data, requires_grad=False)
    parameter.__dict__.update(settings)
    return parameter


@contextlib.contextmanager
def products_of_4_bit_weights() -> Iterator[None]:
    """A product with such weights makes them whole first, unless there are few rows."""
    modules: Any = sys.modules.get("bitsandbytes.backends.default.ops")
    in_parts = getattr(modules, "_gemm_4bit_default_impl", None)  # one operator from 0.50 on
    if in_parts is None:
        yield
        return
    library = torch.library.Library("bitsandbytes", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("gemm_4bit", in_parts, "AutogradCUDA")
        yield
    finally:
        library._destroy()
