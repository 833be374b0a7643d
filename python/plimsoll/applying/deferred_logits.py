"""A last linear layer whose logits are computed when somebody asks for them. A cross-entropy does
not: it takes them in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .chunked_loss import CHUNKS, chunked_cross_entropy


class ChunkedHead(nn.Linear):
    """An nn.Linear becomes one by its class alone: names, weights and ties stay as they are."""

    chunks = CHUNKS

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        return DeferredLogits(input, self)


class DeferredLogits(torch.Tensor):
    hidden: torch.Tensor
    head: ChunkedHead

    @staticmethod
    def __new__(
        cls, hidden: torch.Tensor, head: ChunkedHead, dtype: torch.dtype | None = None
    ) -> DeferredLogits:
        kind = hidden.device.type
        if dtype is None:
            autocasts = torch.is_autocast_enabled(kind)
            dtype = torch.get_autocast_dtype(kind) if autocasts else head.weight.dtype
        made: DeferredLogits = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, (*hidden.shape[:-1], head.out_features), dtype=dtype, device=hidden.device
        )
        made.hidden, made.head = hidden, head
        return made

    def __init__(self, *_: Any) -> None:
        self._whole: torch.Tensor | None = None

    def whole(self) -> torch.Tensor:
        """All of them, for whoever is no cross-entropy."""
        if self._whole is None:
            made = nn.functional.linear(self.hidden, self.head.weight, self.head.bias)
            self._whole = made.to(_plainly(torch.Tensor.dtype.__get__, self))  # type: ignore[attr-defined]
        return self._whole

    def like(self, hidden: torch.Tensor) -> DeferredLogits:
        dtype = _plainly(torch.Tensor.dtype.__get__, self)  # type: ignore[attr-defined]
        return DeferredLogits(hidden, self.head, dtype)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<logits of {tuple(self.shape)}, not computed yet>"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ABOUT_SHAPE:
            return _plainly(func, *args, **kwargs)
        deferred = _DEFERRED.get(func)
        if deferred is not None and isinstance(args[0] if args else None, cls):
            result = deferred(*args, **kwargs)
            if result is not None:
                return result
        args, kwargs = tree_map(lambda x: x.whole() if isinstance(x, cls) else x, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Below autograd it is too late to compute them: their gradient would be lost.
        raise NotImplementedError(f"{func} of logits that were not computed: call .whole() first")


def _plainly(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


# What is done to the logits, done to the hidden states instead. None where that cannot be.


def _float(logits: DeferredLogits) -> DeferredLogits:
    return DeferredLogits(logits.hidden, logits.head, torch.float32)


def _same(logits: DeferredLogits, *_: Any, **__: Any) -> DeferredLogits:
    return logits


def _reshaped(logits: DeferredLogits, *sizes: Any) -> DeferredLogits | None:
    wanted = list(sizes[0]) if sizes and isinstance(sizes[0], (tuple, list)) else list(sizes)
    if not wanted or wanted[-1] not in (-1, logits.head.out_features):
        return None
    if wanted[-1] == -1:  # the rest has to tell
        known = 1
        for size in wanted[:-1]:
            known *= size
        if known != logits.hidden.shape[:-1].numel():
            return None
    return logits.like(logits.hidden.reshape(*wanted[:-1], logits.hidden.shape[-1]))


def _flattened(
    logits: DeferredLogits, start_dim: int = 0, end_dim: int = -1
) -> DeferredLogits | None:
    dims = logits.hidden.dim()
    if end_dim % dims == dims - 1:
        return None  # rows and classes in one
    return logits.like(logits.hidden.flatten(start_dim, end_dim))


def _item(logits: DeferredLogits, index: Any) -> DeferredLogits | None:
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is Ellipsis or isinstance(part, (slice, int)) for part in parts):
        return None
    named = len(parts) - (Ellipsis in parts)
    reaches_last = Ellipsis in parts[:-1] or named == logits.hidden.dim()
    if (reaches_last and parts[-1] != slice(None)) or named > logits.hidden.dim():
        return None
    return logits.like(logits.hidden[index])


def _cross_entropy(
    logits: DeferredLogits,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0
    if not plain or reduction not in ("mean", "sum") or target.is_floating_point():
        return None
    if logits.hidden.dim() > 2 or target.shape != logits.hidden.shape[:-1]:
        return None  # classes stand in the second dimension
    head = logits.head
    return chunked_cross_entropy(
        logits.hidden,
        head.weight,
        target,
        head.bias,
        chunks=head.chunks,
        ignore_index=ignore_index,
        reduction=reduction,
    )


_ABOUT_SHAPE = {
    torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
    torch.Tensor.dtype.__get__,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__,  # type: ignore[attr-defined]
    torch.Tensor.ndim.__get__,  # type: ignore[attr-defined]
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.__len__,
    torch.Tensor.is_floating_point,
}
_DEFERRED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.float: _float,
    torch.Tensor.contiguous: _same,
    torch.Tensor.view: _reshaped,
    torch.Tensor.reshape: _reshaped,
    torch.reshape: _reshaped,
    torch.Tensor.flatten: _flattened,
    torch.flatten: _flattened,
    torch.Tensor.__getitem__: _item,
    nn.functional.cross_entropy: _cross_entropy,
}


def defer(model: nn.Module, chunks: int, layers: Sequence[str] = ()) -> str | None:
    """Makes the model's last linear layer, or the one that is named, a ChunkedHead and gives back
    its name; None where it is not clear which one that is."""
    head = model.get_submodule(layers[0]) if len(layers) == 1 else _head_of(model)
    if type(head) is not nn.Linear:
        return None
    head.__class__ = ChunkedHead
    head.chunks = chunks  # type: ignore[assignment]
    names = {id(module): name for name, module in model.named_modules()}
    return names.get(id(head))


def _head_of(model: nn.Module) -> nn.Linear | None:
    named = getattr(model, "get_output_embeddings", None)
    head = named() if callable(named) else None
    if head is None:
        layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
        widest = max((layer.out_features for layer in layers), default=0)
        candidates = [layer for layer in layers if layer.out_features == widest]
        head = candidates[0] if len(candidates) == 1 else None
    return head if type(head) is nn.Linear else None
