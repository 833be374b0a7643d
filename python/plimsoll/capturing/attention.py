"""scaled_dot_product_attention, told as one call whatever the kernel.

Torch picks the kernel by asking the device that is there. A capture asks the device that is meant:
the kernel decides the layout of the output and of the gradients, and with it whether later
operators have to copy. What the kernel allocates besides is for the reader of the file to say.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ..base.notes import Note
from ..base.patching import Patch, patched
from ..base.places import current_line
from ..events.recorder import Recorder
from ..knowledge.attention_choice import Case, kernel_of


@contextlib.contextmanager
def attention_as_one_call(recorder: Recorder, capability: tuple[int, int]) -> Iterator[None]:
    """Replaces the operator for CUDA tensors, below autocast (which casts first) and under every
    name that it has in Python."""

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        broadcast = query.shape[-3] != key.shape[-3] and not enable_gqa
        chosen = choose(query, key, value, attn_mask, capability, is_causal, dropout_p, broadcast)
        if torch._guards.TracingContext.try_get() is not None:
            shape = (dropout_p, is_causal, scale, enable_gqa)
            return _traced(chosen, query, key, value, attn_mask, *shape)
        grouped = enable_gqa or (False if broadcast else None)
        options = _Options(recorder, chosen, dropout_p, is_causal, scale, grouped)
        return _Attention.apply(query, key, value, attn_mask, options)[0]

    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("scaled_dot_product_attention", kernel, "AutogradCUDA")
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def flex_attention_as_one_call(
    recorder: Recorder, capability: tuple[int, int], note: Note
) -> Iterator[None]:
    """flex_attention is a compiler's kernel. It needs what the fused kernels of attention do, and
    is told as the one without a mask that the device would take."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    if flex is None:
        yield
        return

    def fused(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, *rest: Any) -> Any:
        note(
            f"{current_line()}: flex_attention is taken to be compiled, as one kernel that keeps "
            "no scores"
        )
        grouped = query.shape[1] != key.shape[1]
        chosen = choose(query, key, value, None, capability)
        options = _Options(recorder, chosen, 0.0, False, None, grouped or None)
        output, logsumexp = _Attention.apply(query, key, value, None, options)
        # The largest scores came to be a result in torch 2.9.
        return (output, logsumexp, logsumexp)[: 3 if hasattr(flex, "AuxOutput") else 2]

    with patched([Patch(flex, "flex_attention_hop", fused)]):
        yield


def _traced(
    kernel: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Any:
    """For a compiler, which writes the kernel's own operator into its graph."""
    aten = torch.ops.aten
    if kernel == "math":
        return aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout, causal, scale=scale, enable_gqa=grouped
        )[0]
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if mask is not None and mask.dtype == torch.bool:
        zero, never = (
            torch.scalar_tensor(number, dtype=query.dtype, device=query.device)
            for number in (0.0, -float("inf"))
        )
        mask = torch.where(mask, zero, never)
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keeps, dropout, causal, False, scale=scale
        )[0]
    if kernel == "flash":
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, causal, False, scale=scale
        )[0]
    if mask is not None:
        mask = mask.expand(*query.shape[:-1], key.shape[-2])
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, keeps, dropout, causal, scale=scale
    )[0]


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    capability: tuple[int, int],
    causal: bool = False,
    dropout: float = 0.0,
    broadcast: bool = False,
) -> str:
    """What torch 2.11 takes on a GPU of this capability. What the user switched off
    (`torch.nn.attention.sdpa_kernel`) is passed over."""
    if query.dim() != 4:
        return "math"
    case = Case(
        dtype=str(query.dtype).removeprefix("torch."),
        heads=query.shape[1],
        kv_heads=key.shape[1],
        seq=query.shape[-2],
        kv_seq=key.shape[-2],
        head=query.shape[-1],
        value_head=value.shape[-1],
        mask=mask is not None,
        mask_needs_grad=mask is not None and mask.requires_grad,
        causal=causal,
        dropout=dropout > 0,
        # All but the mathematical form insist on rows without gaps; T5's learned bias has them.
        rows_dense=all(t is None or t.stride(-1) == 1 for t in (query, key, value, mask)),
        broadcast=broadcast,
    )
    return kernel_of(case, capability, (2, 11), _enabled())


def _enabled() -> frozenset[str]:
    asked = torch.backends.cuda
    switches = {
        "cudnn": getattr(asked, "cudnn_sdp_enabled", lambda: False),
        "flash": asked.flash_sdp_enabled,
        "efficient": asked.mem_efficient_sdp_enabled,
    }
    return frozenset(name for name, on in switches.items() if on())


class _Options:
    """What goes with the tensors."""

    def __init__(
        self,
        recorder: Recorder,
        kernel: str,
        dropout: float,
        causal: bool,
        scale: float | None,
        grouped: bool | None,
    ) -> None:
        """`grouped`: None where each query has a key and a value of its own."""
        self.recorder = recorder
        self.kernel = kernel
        self.dropout = dropout
        self.causal = causal
        self.named: dict[str, Any] = {}
        if scale is not None:
            self.named["scale"] = scale
        if grouped is not None:
            self.named["enable_gqa"] = grouped


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: _Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        recorder = options.recorder
        shape = (*query.shape[:-1], value.shape[-1])
        rows = query.shape[-2]
        if options.kernel == "efficient":
            rows = (rows + 31) // 32 * 32  # the kernel's own padding
        with recorder.quiet():
            output = _empty(options.kernel, _Like.of(query), shape)
            logsumexp = torch.empty(
                (*query.shape[:-2], rows), dtype=torch.float32, device=query.device
            )
        recorder.call(
            "plimsoll.attention",
            [query, key, value, mask, options.dropout, options.causal],
            options.named,
            [output, logsumexp],
        )
        ctx.options = options
        if options.kernel == "math":
            # It keeps products of its own, which the reader knows of, and none of these.
            ctx.saved = [recorder.described(t) for t in (mask, key, query, value, output)]
            ctx.like = [_Like.of(t) for t in (query, key, value, mask)]
            ctx.save_for_backward(logsumexp)
        else:
            # In the order in which torch's own nodes let them go.
            ctx.save_for_backward(mask, key, query, value, logsumexp, output)
        ctx.mark_non_differentiable(logsumexp)
        ctx.set_materialize_grads(False)  # no zeros in place of logsumexp's, which nobody asks for
        return output, logsumexp

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor, _: None
    ) -> tuple[torch.Tensor | None, ...]:
        options: _Options = ctx.options
        if options.kernel == "math":
            mask, key, query, value, output = ctx.saved
            (logsumexp,) = ctx.saved_tensors
            like = ctx.like
        else:
            mask, key, query, value, logsumexp, output = ctx.saved_tensors
            like = [_Like.of(t) for t in (query, key, value, mask)]
        wanted = list(ctx.needs_input_grad[:4])
        kernel = options.kernel
        with options.recorder.quiet():
            # A kernel makes those of query, key and value together or not at all.
            grads: list[torch.Tensor | None] = [
                _empty(kernel, each, each.shape) if any(wanted[:3]) else None for each in like[:3]
            ]
            grads.append(_empty("math", like[3], like[3].shape) if wanted[3] else None)
        options.recorder.call(
            "plimsoll.attention_backward",
            [
                grad,
                query,
                key,
                value,
                mask,
                output,
                logsumexp,
                options.dropout,
                options.causal,
                wanted,
            ],
            options.named,
            [made for made in grads if made is not None],
        )
        return (*(made if want else None for made, want in zip(grads, wanted)), None)


class _Like(NamedTuple):
    """What is needed of a tensor to make another like it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor | None) -> Any:
        if tensor is None:
            return None
        return _Like(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def _empty(kernel: str, like: _Like, shape: tuple[int, ...]) -> torch.Tensor:
    """An empty tensor in the layout that the kernel gives to what belongs to `like`."""
    if kernel == "math" or len(shape) != 4:
        order = list(range(len(shape)))
    elif kernel == "efficient":
        order = [0, 2, 1, 3]
    else:  # cuDNN and flash keep the order of the input's strides
        order = sorted(range(4), key=lambda dim: (-like.strides[dim], dim))
        order.remove(3)  # the head stays innermost
        order.append(3)
    strides_made = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides_made[dim] = step
        step *= max(shape[dim], 1)
    return torch.empty_strided(shape, strides_made, dtype=like.dtype, device=like.device)
