"""Weights that bitsandbytes keeps in 4 bits. They are made from whole ones when they come to a GPU,
by operators that run without data; only its class of parameters does not take fake tensors."""

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


def parameters_of_any_class() -> list[Patch]:
    """A parameter in 4 bits of a fake tensor is a plain one that knows how it is to be kept."""
    modules: Any = sys.modules.get("bitsandbytes.nn.modules")
    if modules is None:
        return []
    new = modules.Params4bit.__new__

    def made(cls: type, data: Any = None, requires_grad: bool = False, **settings: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return new(cls, data, requires_grad, **settings)
        parameter = nn.Parameter(data, requires_grad and data.is_floating_point())
        known = {"quant_type": "fp4", "compress_statistics": True, "blocksize": None}
        known.update(quant_storage=torch.uint8, quant_state=None, bnb_quantized=False, module=None)
        parameter.__dict__.update({**known, **settings})
        return parameter

    return [Patch(modules.Params4bit, "__new__", made)]


def quantized(source: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """`moved` is what `source` has become. On a GPU it is kept in 4 bits, if it is to be."""
    settings = source.__dict__
    waits = settings.get("bnb_quantized") is False and "quant_type" in settings
    if not waits or moved.device.type != "cuda":
        return moved
    functional: Any = sys.modules["bitsandbytes.functional"]
    given = {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
    data, state = functional.quantize_4bit(moved.detach(), **given)
    kept = nn.Parameter(data, requires_grad=False)
    kept.__dict__.update(settings, quant_state=state, bnb_quantized=True)
    return kept


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
