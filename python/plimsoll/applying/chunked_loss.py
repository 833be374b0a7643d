"""The last linear layer and its cross-entropy, some rows at a time.

Logits are the largest tensor of most language models, and a backward needs them three times over.
Here the gradients of a chunk of rows are computed as soon as its logits are there, in their own
memory, so that nothing of rows x classes outlives its chunk. The matrix products are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

#: What `plimsoll plan` tries.
CHUNKS = 8


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    chunks: int = CHUNKS,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """`F.cross_entropy(F.linear(hidden, weight, bias), labels)` up to rounding.

    `hidden` is (..., width), `weight` (classes, width), `labels` the rest of hidden's shape. Sums
    over rows are made in fp32; under autocast the products are made in its type.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is 'mean' or 'sum', not {reduction!r}")
    if chunks < 1:
        raise ValueError(f"{chunks} chunks cannot be made")
    if hidden.shape[:-1] != labels.shape:
        raise ValueError(f"labels {tuple(labels.shape)} do not go with {tuple(hidden.shape)}")
    rows = hidden.reshape(-1, hidden.shape[-1])
    total: torch.Tensor = _ChunkedCrossEntropy.apply(
        rows, weight, bias, labels.reshape(-1), chunks, ignore_index, reduction == "mean"
    )
    return total


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        chunks: int,
        ignore_index: int,
        mean: bool,
    ) -> torch.Tensor:
        kind = hidden.device.type
        exact = torch.autocast(kind, enabled=False)
        product = torch.get_autocast_dtype(kind) if autocasts(hidden) else weight.dtype
        with exact:
            sums = _Sums(hidden, weight, bias, product, ctx.needs_input_grad[:3])
            rows = hidden.shape[0]
            for i in range(chunks):
                begin, end = rows * i // chunks, rows * (i + 1) // chunks
                if begin < end:
                    sums.add(begin, end, labels[begin:end], ignore_index)
            if mean:
                counted = (labels != ignore_index).sum().to(sums.loss.dtype)
                scale = counted.reciprocal_()
            else:
                scale = torch.ones_like(sums.loss)
        # No save_for_backward, which hooks would take to the host and back: these are results.
        ctx.gradients = [sums.hidden_grad, sums.weight_grad, sums.bias_grad]
        ctx.scale = scale
        ctx.types = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        return sums.loss.mul_(scale)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of chunked_cross_entropy were handed out already")
        gradients, ctx.gradients = ctx.gradients, None
        # Only here, where the factor of a gradient scaler comes in: before it, fp16 would lose
        # what is small.
        factor = outer * ctx.scale
        for i, kind in enumerate(ctx.types):
            if gradients[i] is not None:
                gradients[i] = gradients[i].mul_(factor).to(kind)
        return (*gradients, None, None, None, None)


class _Sums:
    """Over the rows seen so far: the loss, and the gradients that are wanted."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        product: torch.dtype,
        wanted: tuple[bool, ...],
    ) -> None:
        self.hidden = hidden
        self.weight = weight.to(product)
        self.bias = None if bias is None else bias.to(product)
        self.product = product
        self.type = torch.promote_types(product, torch.float32)
        self.loss = torch.zeros((), dtype=self.type, device=hidden.device)
        self.hidden_grad = torch.empty_like(hidden) if wanted[0] else None
        self.weight_grad = torch.zeros_like(weight, dtype=self.type) if wanted[1] else None
        self.bias_grad = None
        if bias is not None and wanted[2]:
            self.bias_grad = torch.zeros_like(bias, dtype=self.type)

    def add(self, begin: int, end: int, labels: torch.Tensor, ignore_index: int) -> None:
        counts = labels != ignore_index
        classes = torch.where(counts, labels, 0)[:, None]
        # Rows that do not count are 0, so that nothing as large as the logits needs a mask.
        hidden = torch.where(counts[:, None], self.hidden[begin:end], 0).to(self.product)
        logits = self._logits(hidden)
        torch.ops.aten._log_softmax.out(logits, 1, False, out=logits)
        own = logits.gather(1, classes)
        self.loss.sub_(torch.where(counts, own[:, 0], 0).sum())
        if self.hidden_grad is None and self.weight_grad is None and self.bias_grad is None:
            return
        # Softmax less one at the own class.
        grad = logits.exp_().scatter_(1, classes, own.expm1_())
        if self.bias_grad is not None:
            self.bias_grad.addmv_(grad.t(), counts.to(self.type))
        del logits
        grad = grad.to(self.product)
        if self.hidden_grad is not None:
            self._set_hidden_grad(self.hidden_grad[begin:end], grad, counts)
        if self.weight_grad is not None:
            self._add_weight_grad(self.weight_grad, grad, hidden)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(hidden, self.weight.t()).to(self.type)
        return torch.addmm(self.bias, hidden, self.weight.t()).to(self.type)

    def _set_hidden_grad(
        self, into: torch.Tensor, grad: torch.Tensor, counts: torch.Tensor
    ) -> None:
        if into.dtype is self.product:
            torch.mm(grad, self.weight, out=into)
        else:
            into.copy_(torch.mm(grad, self.weight))
        into.masked_fill_(counts.logical_not()[:, None], 0)

    def _add_weight_grad(
        self, into: torch.Tensor, grad: torch.Tensor, hidden: torch.Tensor
    ) -> None:
        if self.product is self.type:
            into.addmm_(grad.t(), hidden)
        else:
            into.add_(torch.mm(grad.t(), hidden))


def autocasts(hidden: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(hidden.device.type) and hidden.dtype is not torch.float64
