"""Weights that bitsandbytes keeps in 4 or 8 bits. They are made from whole ones when they come to a
GPU, by operators that run without data; only its classes of parameters do not take fake tensors."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ..base.assumptions import Assumptions
from ..base.notes import Note
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
def products_of_quantized_weights(note: Note, stated: Assumptions) -> Iterator[None]:
    """Operators of bitsandbytes that make more on the way than their results, as it makes them."""
    in_parts = _in_parts(note, stated)
    if not in_parts:
        yield
        return
    library = torch.library.Library("bitsandbytes", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, function in in_parts.items():
                library.impl(name, function, "AutogradCUDA")
        yield
    finally:
        library._destroy()


def _in_parts(note: Note, stated: Assumptions) -> dict[str, Callable[..., Any]]:
    """By the operators' names; of those that this release has."""
    modules: Any = sys.modules.get("bitsandbytes.backends.default.ops")
    # A product with weights in 4 bits makes them whole first, unless there are few rows. One
    # operator from 0.50 on.
    found = {"gemm_4bit": getattr(modules, "_gemm_4bit_default_impl", None)}
    if hasattr(torch.ops.bitsandbytes, "int8_mixed_scaled_mm"):
        found |= {
            "int8_vectorwise_quant": _rows_in_8_bits(note, stated),
            "int8_mixed_scaled_mm": _product_with_outliers,
            "int8_scaled_mm": _product_in_8_bits,
            "int8_mm_dequant": _from_32_bits,
        }
    return {name: function for name, function in found.items() if function is not None}


def _rows_in_8_bits(note: Note, stated: Assumptions) -> Callable[..., Any]:
    def rows_in_8_bits(rows: torch.Tensor, threshold: float = 0.0) -> Any:
        """Columns with values beyond the threshold are left out of them. Which those are nobody
        knows without values."""
        few = torch.empty(rows.shape, device=rows.device, dtype=torch.int8)
        count = rows.numel() // rows.shape[-1]
        scales = torch.empty(count, device=rows.device, dtype=torch.float32)
        if threshold <= 0:
            return few, scales, None
        beyond = rows.abs() >= threshold
        stated.note_outliers(note)
        some = math.ceil((stated.outliers or 0.0) * rows.shape[-1])
        if some:
            beyond.any(dim=0)
        columns = torch.empty(some, device=rows.device, dtype=torch.int64)
        if count > 1 and some:
            few[:, columns] = 0
        return few, scales, columns

    return rows_in_8_bits


def _product_with_outliers(
    rows: torch.Tensor,
    few: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    weight_scales: torch.Tensor,
    columns: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns that were left out are multiplied as they are, and added."""
    operators = torch.ops.bitsandbytes
    if columns is None or not columns.numel():
        left_out, whole = rows.new_empty(0), None
    else:
        left_out = rows[:, columns].contiguous()
        picked = weight[:, columns].contiguous()
        whole = operators.int8_vectorwise_dequant(picked, weight_scales).to(rows.dtype).t()
        del picked
    result = operators.int8_scaled_mm(few, weight, scales, weight_scales, bias, rows.dtype)
    return (result if whole is None else result.addmm(left_out, whole)), left_out


def _product_in_8_bits(
    few: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    operators = torch.ops.bitsandbytes
    sums = operators.int8_linear_matmul(few, weight)
    result: torch.Tensor = operators.int8_mm_dequant(sums, scales, weight_scales, dtype, bias)
    return result


def _from_32_bits(
    sums: torch.Tensor,
    scales: torch.Tensor,
    weight_scales: torch.Tensor,
    dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The kernel writes float16, whatever is asked for."""
    result = torch.empty_like(sums, dtype=torch.float16)
    if bias is not None and bias.dtype != torch.float16:
        result.add_(bias)
    return result.to(dtype or torch.float16)
