"""A last linear layer whose logits are computed when somebody asks for them. A cross-entropy, and
the log-probabilities of chosen classes, do not: they take them in chunks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .chunked_log_probs import chunked_log_probs
from .chunked_loss import CHUNKS, chunked_cross_entropy


class ChunkedHead(nn.Linear):
    """An nn.Linear becomes one by its class alone: names, weights and ties stay as they are."""

    chunks = CHUNKS
    #: Also where nothing is trained: a reference whose log-probabilities alone are wanted.
    without_gradient = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not (self.without_gradient or (self.training and torch.is_grad_enabled())):
            return super().forward(input)
        return DeferredLogits(input, _Asked.now(input, self))


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the logits are, and how the layer was called."""

    head: ChunkedHead
    dtype: torch.dtype
    #: Of autocast, where it was on.
    product: torch.dtype | None
    gradient: bool
    #: What they were divided by, and whether log_softmax was taken of that.
    temperature: float = 1.0
    logarithms: bool = False

    @staticmethod
    def now(hidden: torch.Tensor, head: ChunkedHead) -> _Asked:
        kind = hidden.device.type
        product = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return _Asked(head, product or head.weight.dtype, product, torch.is_grad_enabled())

    @contextlib.contextmanager
    def as_called(self) -> Iterator[None]:
        """Whoever asks for them may do so after the autocast around the model is over."""
        kind = self.head.weight.device.type
        autocast = torch.autocast(kind, dtype=self.product, enabled=self.product is not None)
        with autocast, torch.set_grad_enabled(self.gradient and torch.is_grad_enabled()):
            yield


class DeferredLogits(torch.Tensor):
    hidden: torch.Tensor
    asked: _Asked

    @staticmethod
    def __new__(cls, hidden: torch.Tensor, asked: _Asked) -> DeferredLogits:
        made: DeferredLogits = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            (*hidden.shape[:-1], asked.head.out_features),
            dtype=asked.dtype,
            device=hidden.device,
        )
        made.hidden, made.asked = hidden, asked
        return made

    def __init__(self, *_: Any) -> None:
        self._whole: torch.Tensor | None = None
        #: In place, and so no longer what the hidden states give.
        self._changed = False

    def whole(self) -> torch.Tensor:
        """All of them, for whoever takes no chunks."""
        if self._whole is None:
            asked = self.asked
            with asked.as_called():
                made = nn.functional.linear(self.hidden, asked.head.weight, asked.head.bias)
                made = made.to(asked.dtype)
                if asked.temperature != 1:
                    made = made / asked.temperature
                if asked.logarithms:
                    made = made.log_softmax(-1, dtype=asked.dtype)
            self._whole = made
        return self._whole

    def like(self, hidden: torch.Tensor) -> DeferredLogits:
        return DeferredLogits(hidden, self.asked)

    def but(self, **asked: Any) -> DeferredLogits:
        return DeferredLogits(self.hidden, dataclasses.replace(self.asked, **asked))

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
        first = args[0] if args else None
        if isinstance(first, cls):
            first._changed = first._changed or _is_in_place(func)
            result = None if deferred is None or first._changed else deferred(*args, **kwargs)
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


def _is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE


#: By an operator.
_IN_PLACE = {"__setitem__", *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "div"))}


def _plainly(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


# What is done to the logits, done to the hidden states instead. None where that cannot be.


def _float(logits: DeferredLogits) -> DeferredLogits:
    return logits.but(dtype=torch.float32)


def _to(logits: DeferredLogits, dtype: Any, *rest: Any, **how: Any) -> DeferredLogits | None:
    floats = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    return logits.but(dtype=dtype) if floats and not rest and not how else None


def _divided(logits: DeferredLogits, by: Any, **how: Any) -> DeferredLogits | None:
    if how or isinstance(by, bool) or not isinstance(by, (int, float)) or not by > 0:
        return None
    if logits.asked.logarithms:
        return None
    return logits.but(temperature=logits.asked.temperature * by)


def _log_softmax(
    logits: DeferredLogits,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> DeferredLogits | None:
    if dim is None or dim % logits.dim() != logits.dim() - 1 or logits.asked.logarithms:
        return None
    if dtype is None:
        autocasts = torch.is_autocast_enabled(logits.hidden.device.type)
        dtype = torch.float32 if autocasts else logits.asked.dtype
    return logits.but(logarithms=True, dtype=dtype)


def _log_softmax_of(
    logits: DeferredLogits, dim: int, dtype: torch.dtype | None = None
) -> DeferredLogits | None:
    """The same as a method, which takes its arguments in another order."""
    return _log_softmax(logits, dim, dtype=dtype)


def _gathered(logits: DeferredLogits, dim: int, index: torch.Tensor) -> torch.Tensor | None:
    asked, hidden = logits.asked, logits.hidden
    of_last = dim % logits.dim() == logits.dim() - 1
    if not asked.logarithms or not of_last or index.shape != (*hidden.shape[:-1], 1):
        return None
    head = asked.head
    with asked.as_called():
        own = chunked_log_probs(
            hidden,
            head.weight,
            index[..., 0],
            head.bias,
            chunks=head.chunks,
            temperature=asked.temperature,
        )
    return own.to(asked.dtype)[..., None]  # type: ignore[no-any-return]


def _same(logits: DeferredLogits, *_: Any, **__: Any) -> DeferredLogits:
    return logits


def _reshaped(logits: DeferredLogits, *sizes: Any) -> DeferredLogits | None:
    wanted = list(sizes[0]) if sizes and isinstance(sizes[0], (tuple, list)) else list(sizes)
    if not wanted or wanted[-1] not in (-1, logits.asked.head.out_features):
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
    asked = logits.asked
    if asked.logarithms or asked.temperature != 1:
        return None
    with asked.as_called():
        return chunked_cross_entropy(
            logits.hidden,
            asked.head.weight,
            target,
            asked.head.bias,
            chunks=asked.head.chunks,
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
    torch.Tensor.to: _to,
    torch.Tensor.div: _divided,
    torch.Tensor.__truediv__: _divided,
    torch.div: _divided,
    nn.functional.log_softmax: _log_softmax,
    torch.Tensor.gather: _gathered,
    torch.gather: _gathered,
    nn.functional.cross_entropy: _cross_entropy,
    **dict.fromkeys((torch.Tensor.log_softmax, torch.log_softmax), _log_softmax_of),
}


def defer(
    model: nn.Module, chunks: int, layer: str | None = None, without_gradient: bool = False
) -> str | None:
    """Makes the model's last linear layer, or the one that is named, a ChunkedHead and gives back
    its name; None where it is not clear which one that is."""
    head = _head_of(model) if layer is None else model.get_submodule(layer)
    if type(head) is not nn.Linear:
        return None
    head.__class__ = ChunkedHead
    head.chunks = chunks  # type: ignore[assignment]
    head.without_gradient = without_gradient  # type: ignore[assignment]
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
