"""LoRA and weights in 4 bits, as PEFT and bitsandbytes make them, of modules of our own: neither
needs to be installed, and what each keeps, copies and casts is the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

#: Of bitsandbytes: weights that share a scale, and scales that share one (`double_quant`).
_BLOCK, _BLOCK_OF_SCALES = 64, 256
#: Values that 4 bits, or the 8 of a scale, stand for.
_CODES, _CODES_OF_SCALES = 16, 256


class Lora(nn.Module):
    """A linear layer with two narrow ones beside it."""

    def __init__(self, base_layer: nn.Module, rank: int, dropout: float) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        inner, outer = widths(base_layer)
        # In float32 beside weights in 16 bit too: PEFT's `autocast_adapter_dtype`.
        self.lora_A = nn.Linear(inner, rank, bias=False, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, outer, bias=False, dtype=torch.float32)
        self._scaling = 2.0

    @property
    def weight(self) -> Any:
        """As PEFT has it: T5 asks a layer for the type of its weights."""
        return self.base_layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_layer(x)
        dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.lora_dropout(x))) * self._scaling
        return result.to(dtype)


class LoraOf4Bit(Lora):
    """PEFT copies what the layer gives, and leaves the type of the input to autocast."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_layer(x).clone()
        cast = torch.is_autocast_enabled("cuda")
        if not cast:
            x = x.to(self.lora_A.weight.dtype)
        output: torch.Tensor = self.lora_B(self.lora_A(self.lora_dropout(x))) * self._scaling
        if not cast:
            output = output.to(result.dtype)
        # What it was goes before what is added, which has a name there too.
        result = result + output
        return result


class Linear4bit(nn.Module):
    """Weights in 4 bits (nf4) with scales in 8 (double_quant), whole only while they are used."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.in_features, self.out_features = widths(source)
        count = self.in_features * self.out_features
        blocks = -(-count // _BLOCK)
        packed = torch.empty(-(-count // 2), 1, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        bias = getattr(source, "bias", None)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        sizes = {
            "absmax": (blocks, torch.uint8),
            "absmax_of_scales": (-(-blocks // _BLOCK_OF_SCALES), torch.float32),
            "code_of_scales": (_CODES_OF_SCALES, torch.float32),
            "code": (_CODES, torch.float32),
            "offset": (1, torch.float32),
        }
        for name, (size, dtype) in sizes.items():
            self.register_buffer(name, torch.empty(size, dtype=dtype), persistent=False)
        self.whole_dtype = torch.bfloat16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x.dtype
        x = x.to(self.whole_dtype)
        bias = None if self.bias is None else self.bias.to(self.whole_dtype)
        scales = (self.absmax, self.absmax_of_scales, self.code_of_scales, self.offset)
        shape = (self.out_features, self.in_features)
        # Without a name: it goes before the input's cast does.
        return _Product.apply(x, self.weight, bias, scales, shape).to(given)  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    """Keeps the weights as they lie, and makes them whole again for the backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, packed: Any, bias: Any, scales: Any, shape: Any) -> Any:
        ctx.packed, ctx.scales, ctx.shape = packed, scales, shape
        absmax, of_scales, code, offset = scales
        # All of them are there until the product is made: bitsandbytes has names for them.
        without_mean = torch.ops.plimsoll.dequantize_blockwise(absmax, of_scales, code)
        spread = without_mean + offset
        whole = torch.ops.plimsoll.dequantize_4bit(packed, spread, list(shape), x.dtype)
        return nn.functional.linear(x, whole, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        absmax, of_scales, code, offset = ctx.scales
        spread = torch.ops.plimsoll.dequantize_blockwise(absmax, of_scales, code)
        spread += offset
        whole = torch.ops.plimsoll.dequantize_4bit(
            ctx.packed, spread, list(ctx.shape), torch.bfloat16
        )
        del spread
        return torch.matmul(gradient, whole.to(gradient.dtype)), None, None, None, None


_library: Any = None


def declare_operators() -> None:
    """Once in a process."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("plimsoll", "FRAGMENT")
    _library.define("dequantize_blockwise(Tensor a, Tensor absmax, Tensor code) -> Tensor")
    _library.define(
        "dequantize_4bit(Tensor a, Tensor absmax, int[] shape, ScalarType dtype) -> Tensor"
    )

    def blockwise(a: Any, absmax: Any, code: Any) -> Any:
        return torch.empty_like(a, dtype=torch.float32)

    def whole(a: Any, absmax: Any, shape: Any, dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype, device=a.device)

    for name, kernel in (("dequantize_blockwise", blockwise), ("dequantize_4bit", whole)):
        torch.library.register_fake(f"plimsoll::{name}", kernel, lib=_library)


def is_linear(module: nn.Module) -> bool:
    """What PEFT adapts. Conv1D is GPT-2's, with the weight the other way round."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def goes_into_4_bits(module: nn.Module) -> bool:
    """transformers leaves out what is derived from nn.Linear: all of Falcon's layers."""
    return type(module) is nn.Linear or type(module).__name__ == "Conv1D"


def widths(module: nn.Module) -> tuple[int, int]:
    """Of its inputs and of its outputs."""
    if isinstance(module, (nn.Linear, Linear4bit)):
        return module.in_features, module.out_features
    inner, outer = module.weight.shape  # type: ignore[union-attr, misc]
    return int(inner), int(outer)


def replaced(model: nn.Module, names: Iterable[str], make: Any) -> None:
    """Each of the modules by what is made of it."""
    for name in names:
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        setattr(owner, last, make(getattr(owner, last)))
