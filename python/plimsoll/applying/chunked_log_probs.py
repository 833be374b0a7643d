"""Log-probabilities of chosen tokens, and the entropy beside them, some rows at a time.

What reinforcement learning and preference losses want of a language model's logits is a number or
two for each token. Here the logits of a chunk are computed, used and let go, in the forward and
once more in the backward, so that nothing of rows x classes outlives its chunk. Cross-entropy,
whose gradient is known in the forward already, needs no second product: `chunked_cross_entropy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .chunked_loss import CHUNKS, autocasts

#: A class that cannot come has the logarithm -inf, and is to add nothing: 0 times this is 0.
_LEAST = -1e4


def chunked_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    chunks: int = CHUNKS,
    temperature: float = 1.0,
    ignore_index: int = -100,
    entropy: bool = False,
) -> Any:
    """`log_softmax(linear(hidden, weight, bias) / temperature).gather(labels)` up to rounding.

    `hidden` is (..., width), `weight` (classes, width), `labels` the rest of hidden's shape, which
    the result has too. With `entropy` a pair: the entropy of each row's distribution comes with it.
    Rows whose label is `ignore_index` are 0 and have no gradient. Logarithms and sums are made in
    fp32; under autocast the products are made in its type.
    """
    if chunks < 1:
        raise ValueError(f"{chunks} chunks cannot be made")
    if not temperature > 0:
        raise ValueError(f"temperature is more than 0, not {temperature}")
    if hidden.shape[:-1] != labels.shape:
        raise ValueError(f"labels {tuple(labels.shape)} do not go with {tuple(hidden.shape)}")
    rows = hidden.reshape(-1, hidden.shape[-1])
    options = _Options(chunks, temperature, ignore_index, entropy)
    found = _ChunkedLogProbs.apply(rows, weight, bias, labels.reshape(-1), options)
    shaped = tuple(one.reshape(labels.shape) for one in found)
    return shaped if entropy else shaped[0]


class _Options:
    def __init__(self, chunks: int, temperature: float, ignored: int, entropy: bool) -> None:
        self.chunks, self.temperature = chunks, temperature
        self.ignored, self.entropy = ignored, entropy


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        options: _Options,
    ) -> tuple[torch.Tensor, ...]:
        kind = hidden.device.type
        product = torch.get_autocast_dtype(kind) if autocasts(hidden) else weight.dtype
        ctx.options, ctx.product = options, product
        ctx.save_for_backward(hidden, weight, labels, *(() if bias is None else (bias,)))
        with torch.autocast(kind, enabled=False):
            logits_of = _Logits(hidden, weight, bias, product, options)
            made = torch.zeros(labels.shape, dtype=logits_of.type, device=hidden.device)
            spread = torch.zeros_like(made) if options.entropy else None
            for rows in logits_of.chunks():
                counts, classes = _chosen(labels[rows], options)
                log_probs = logits_of.log_probs(rows)
                made[rows] = torch.where(counts, log_probs.gather(1, classes)[:, 0], 0)
                if spread is not None:
                    spread[rows] = torch.where(counts, _entropy(log_probs), 0)
                del log_probs  # before those of the next chunk are made
        ctx.entropy = spread
        return (made,) if spread is None else (made, spread)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, labels, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        options: _Options = ctx.options
        with torch.autocast(hidden.device.type, enabled=False):
            logits_of = _Logits(hidden, weight, bias, ctx.product, options)
            sums = _Gradients(hidden, weight, bias, logits_of, ctx.needs_input_grad[:3])
            for rows in logits_of.chunks():
                counts, classes = _chosen(labels[rows], options)
                of_own = torch.where(counts, outer[0][rows], 0)[:, None].to(logits_of.type)
                gradient = logits_of.log_probs(rows)
                if options.entropy:
                    of_entropy = torch.where(counts, outer[1][rows], 0)[:, None]
                    gradient = _with_entropy(
                        gradient, of_own, of_entropy.to(logits_of.type), ctx.entropy[rows][:, None]
                    )
                else:
                    gradient.exp_().mul_(of_own.neg())
                gradient.scatter_add_(1, classes, of_own)
                if options.temperature != 1:
                    gradient.div_(options.temperature)
                sums.add_bias(gradient)
                gradient = gradient.to(ctx.product)
                sums.add(rows, gradient)
                del gradient
        return (*sums.results(), None, None)


def _chosen(labels: torch.Tensor, options: _Options) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows count, and the class of each."""
    counts = labels != options.ignored
    return counts, torch.where(counts, labels, 0)[:, None]


def _entropy(log_probs: torch.Tensor) -> torch.Tensor:
    return -log_probs.exp().mul_(log_probs.clamp_min_(_LEAST)).sum(1)


def _with_entropy(
    log_probs: torch.Tensor, of_own: torch.Tensor, of_entropy: torch.Tensor, spread: torch.Tensor
) -> torch.Tensor:
    """-p (own + entropy' (log p + entropy)), in the memory of the logarithms."""
    p = log_probs.exp()
    log_probs.clamp_min_(_LEAST).add_(spread)
    return log_probs.mul_(of_entropy).add_(of_own).mul_(p).neg_()


class _Logits:
    """Those of some rows, again and again."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        product: torch.dtype,
        options: _Options,
    ) -> None:
        self.hidden = hidden
        self.weight = weight.to(product)
        self.bias = None if bias is None else bias.to(product)
        self.product = product
        self.type = torch.promote_types(product, torch.float32)
        self._options = options

    def chunks(self) -> Iterator[slice]:
        rows, chunks = self.hidden.shape[0], self._options.chunks
        for i in range(chunks):
            begin, end = rows * i // chunks, rows * (i + 1) // chunks
            if begin < end:
                yield slice(begin, end)

    def rows(self, rows: slice) -> torch.Tensor:
        return self.hidden[rows].to(self.product)

    def log_probs(self, rows: slice) -> torch.Tensor:
        hidden = self.rows(rows)
        if self.bias is None:
            logits = torch.mm(hidden, self.weight.t()).to(self.type)
        else:
            logits = torch.addmm(self.bias, hidden, self.weight.t()).to(self.type)
        if self._options.temperature != 1:
            logits.div_(self._options.temperature)
        torch.ops.aten._log_softmax.out(logits, 1, False, out=logits)
        return logits


class _Gradients:
    """Over the rows seen so far: what is wanted of hidden states, weight and bias."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        logits: _Logits,
        wanted: tuple[bool, ...],
    ) -> None:
        self._logits = logits
        self._types = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        self._hidden = torch.empty_like(hidden) if wanted[0] else None
        self._weight = torch.zeros_like(weight, dtype=logits.type) if wanted[1] else None
        self._bias = None
        if bias is not None and wanted[2]:
            self._bias = torch.zeros_like(bias, dtype=logits.type)

    def add_bias(self, of_logits: torch.Tensor) -> None:
        if self._bias is not None:
            self._bias.add_(of_logits.sum(0))

    def add(self, rows: slice, of_logits: torch.Tensor) -> None:
        """In the type of the products."""
        logits = self._logits
        if self._hidden is not None:
            self._hidden[rows] = torch.mm(of_logits, logits.weight)
        if self._weight is not None:
            hidden = logits.rows(rows)
            if logits.product is logits.type:
                self._weight.addmm_(of_logits.t(), hidden)
            else:
                self._weight.add_(torch.mm(of_logits.t(), hidden))

    def results(self) -> list[torch.Tensor | None]:
        found = (self._hidden, self._weight, self._bias)
        return [
            None if one is None or kind is None else one.to(kind)
            for one, kind in zip(found, self._types)
        ]
