"""What operators make of fake tensors, remembered by the shapes of what they are given.

FakeTensorMode remembers too, and looks each time whether it may, which is most of what a capture
takes: a model has the same layer many times. What is remembered here is of operators whose results
depend on nothing but shapes, and that write into nothing.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

_TENSOR = torch._C.TensorType.get()
_DEPENDS_ON_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_PLAIN = (
    bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format
)  # fmt: skip


class _Made(NamedTuple):
    """One result: memory of its own, or a view of the argument with this number."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    view_of: int | None
    offset: int


class _NotKnown(Exception):
    """A tensor that says more than its shape."""


#: A script that runs long has ever new shapes.
_MOST = 1 << 16


class Remembered:
    def __init__(self) -> None:
        self._made: dict[Any, tuple[_Made, ...] | None] = {}

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator's results: as torch says them, or as it did before."""
        # A compiler that looks on has modes of its own, which have to see it all.
        if torch._C._len_torch_dispatch_stack() != 1 or not _depends_on_shapes(func):
            return func(*args, **kwargs)
        given: list[FakeTensor] = []
        try:
            key = _key(func, args, kwargs, given)
            known = self._made.get(key)
        except (_NotKnown, TypeError):  # a size that is a symbol is no key
            return func(*args, **kwargs)
        if known is not None and given:
            return _again(known, given, len(func._schema.returns) > 1)
        result = func(*args, **kwargs)
        if key not in self._made and len(self._made) < _MOST:
            self._made[key] = _described(result, given)
        return result


@functools.cache
def _depends_on_shapes(func: Any) -> bool:
    schema = func._schema
    if schema.is_mutable or _DEPENDS_ON_VALUES & set(func.tags) or not schema.returns:
        return False
    return all(one.type == _TENSOR for one in schema.returns)


def _key(func: Any, args: Any, kwargs: dict[str, Any], given: list[FakeTensor]) -> Any:
    """`given`: gets the tensors among the arguments."""
    told = [_told(arg, given) for arg in args]
    return func, *told, *[(name, _told(arg, given)) for name, arg in kwargs.items()]


def _told(value: Any, given: list[FakeTensor]) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        dtype = value.dtype
        # A complex one may be conjugated.
        if value.constant is not None or value.layout is not torch.strided or dtype.is_complex:
            raise _NotKnown
        given.append(value)
        return value.shape, value.stride(), dtype, value.storage_offset(), value.fake_device
    if kind in _PLAIN:
        return kind, value  # 1, 1.0 and True are one key
    if kind is list or kind is tuple:
        return kind, *[_told(one, given) for one in value]
    raise _NotKnown


def _described(result: Any, given: list[FakeTensor]) -> tuple[_Made, ...] | None:
    """None where there is more to a result than this."""
    results = result if isinstance(result, tuple) else (result,)
    if not all(type(one) is FakeTensor and _is_ordinary(one) for one in results):
        return None
    if any(one is tensor for one in results for tensor in given):
        return None
    storages = [one.untyped_storage()._cdata for one in results]
    owners = {one.untyped_storage()._cdata: at for at, one in enumerate(given)}
    made = tuple(_one(tensor, owners) for tensor in results)
    own = [(one, t) for one, t in zip(made, results) if one.view_of is None]
    if len(set(storages)) < len(storages) or not all(_is_whole(*pair) for pair in own):
        return None
    return made


def _one(tensor: FakeTensor, owners: dict[int, int]) -> _Made:
    return _Made(
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.fake_device,
        owners.get(tensor.untyped_storage()._cdata),
        int(tensor.storage_offset()),
    )


def _is_ordinary(tensor: FakeTensor) -> bool:
    return (
        tensor.constant is None
        and tensor.layout is torch.strided
        and not tensor.dtype.is_complex
        and not tensor.requires_grad
    )


def _is_whole(made: _Made, tensor: FakeTensor) -> bool:
    with no_dispatch():
        size = _empty(made).untyped_storage().nbytes()
    return made.offset == 0 and tensor.untyped_storage().nbytes() == size


def _again(known: tuple[_Made, ...], given: list[FakeTensor], several: bool) -> Any:
    mode = given[0].fake_mode
    with no_dispatch():
        made = tuple(_new(mode, one, given) for one in known)
    return made if several else made[0]


def _new(mode: FakeTensorMode, made: _Made, given: list[FakeTensor]) -> FakeTensor:
    tensor = _empty(made)
    if made.view_of is not None:
        memory: Any = given[made.view_of].untyped_storage()
        tensor.set_(memory, made.offset, made.shape, made.strides)
    return FakeTensor(mode, tensor, made.device)


def _empty(made: _Made) -> torch.Tensor:
    return torch.empty_strided(made.shape, made.strides, dtype=made.dtype, device="meta")
