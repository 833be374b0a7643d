"""Batches: a tensor, a tuple or a dictionary of tensors, nested as one likes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Callable

import torch

_stand_for_larger = False


@contextlib.contextmanager
def small_batches() -> Iterator[None]:
    """While this is open, batches are smaller than the job's own, for which they stand."""
    global _stand_for_larger
    before, _stand_for_larger = _stand_for_larger, True
    try:
        yield
    finally:
        _stand_for_larger = before


def stand_for_larger() -> bool:
    return _stand_for_larger


def spread(batch: Any) -> tuple[Any, ...]:
    """As the arguments of a loss, after the model."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(value)


def moved(
    batch: Any, device: torch.device, weights: torch.dtype | None, channels_last: bool
) -> Any:
    """On the device, and as weights of this type and format want it."""

    def one(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_on(tensor, device):
            tensor = tensor.to(device)
        if tensor.is_floating_point() and weights is torch.bfloat16:
            tensor = tensor.to(weights)
        if channels_last and tensor.dim() == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        return tensor

    return changed(batch, one)


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def samples_of(batch: Any) -> int | None:
    """By the first dimension of its first tensor."""
    first = next(tensors_of(batch), None)
    return None if first is None or first.dim() == 0 else first.shape[0]


def pieces(batch: Any, size: int) -> list[tuple[Any, int]]:
    """The batch in parts of at most so many samples, with the number of each. What has another
    first dimension than the first tensor is part of every piece."""
    samples = samples_of(batch)
    if samples is None:
        return [(batch, 1)]

    def part(start: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def cut(tensor: torch.Tensor) -> torch.Tensor:
            whole = tensor.dim() == 0 or tensor.shape[0] != samples
            return tensor if whole else tensor[start : start + size]

        return cut

    if samples <= size:
        return [(batch, samples)]
    return [
        (changed(batch, part(start)), min(size, samples - start))
        for start in range(0, samples, size)
    ]


def changed(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Of the same kind, each tensor replaced."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        made = {key: changed(value, change) for key, value in batch.items()}
        if type(batch) is dict:
            return made
        with contextlib.suppress(Exception):  # a mapping of its own kind, BatchEncoding for one
            return type(batch)(made)  # type: ignore[call-arg]
        return made
    if isinstance(batch, (tuple, list)):
        parts = [changed(value, change) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
