"""The sizes of an epoch's batches, as the script's own loader makes them, and the lengths of the
samples in them. Little is kept of each batch: a set of a million samples takes some megabytes."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

import torch

from .heaviest import weight_of

Shapes = tuple[tuple[int, ...], ...]
_HEAVIEST = 5
#: Of one batch, so many are named.
_SAMPLES = 64


class Heavy(NamedTuple):
    weight: int
    #: Counted from 0 downwards, so that of equal ones the first is kept.
    place: int
    samples: list[int]


class EpochSizes(NamedTuple):
    """What is sent back."""

    shapes: list[Shapes]
    #: Of each batch, in the order of the sampler: which of the shapes it has.
    order: array[int]
    heaviest: list[Heavy]
    #: Of samples: how many there are of each length. Empty where they have none.
    lengths: Counter[int]
    #: All batches of an epoch were seen.
    complete: bool


class DataSizes:
    def __init__(self) -> None:
        self._ids: dict[Shapes, int] = {}
        self._order = array("I")
        self._heaviest: list[Heavy] = []
        self._lengths: Counter[int] = Counter()
        self._leaf: int | None = None
        self._samples: list[int] = []
        self.complete = False

    def follow(self, iterator: Any) -> None:
        """Before its first batch: what each is made of is seen, too."""
        inner = iterator._sampler_iter

        def told() -> Iterator[Any]:
            for indices in inner:
                self._samples = indices if isinstance(indices, list) else [indices]
                yield indices

        iterator._sampler_iter = told()
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            fetcher.collate_fn = self._measuring(fetcher.collate_fn)

    def _measuring(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def measured(samples: Any) -> Any:
            batch = collate(samples)
            if isinstance(samples, list):
                self._measure(samples, batch)
            return batch

        return measured

    def _measure(self, samples: list[Any], batch: Any) -> None:
        if self._leaf is None:
            self._leaf = _padded_leaf(samples, batch)
        if self._leaf >= 0:
            self._lengths.update(_lengths(sample)[self._leaf] for sample in samples)

    def add(self, batch: Any) -> None:
        shapes = tuple(tuple(tensor.shape) for tensor in tensors(batch))
        self._order.append(self._ids.setdefault(shapes, len(self._ids)))
        weight, index = weight_of(batch), -(len(self._order) - 1)
        if len(self._heaviest) < _HEAVIEST or (weight, index) > self._heaviest[0][:2]:
            heapq.heappush(self._heaviest, Heavy(weight, index, list(self._samples[:_SAMPLES])))
            if len(self._heaviest) > _HEAVIEST:
                heapq.heappop(self._heaviest)

    @property
    def seen(self) -> int:
        return len(self._order)

    def result(self) -> EpochSizes:
        ordered = sorted(self._heaviest, reverse=True)
        shapes = list(self._ids)
        return EpochSizes(shapes, self._order, ordered, self._lengths, self.complete)


def tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for value in batch.values() for tensor in tensors(value)]
    if isinstance(batch, (list, tuple)):
        return [tensor for value in batch for tensor in tensors(value)]
    return []


def _lengths(sample: Any) -> list[int]:
    """Of the lists of numbers that a sample has, in order."""
    if isinstance(sample, Mapping):
        return [length for value in sample.values() for length in _lengths(value)]
    if isinstance(sample, (list, tuple)):
        if sample and isinstance(sample[0], (int, float)):
            return [len(sample)]
        return [length for value in sample for length in _lengths(value)]
    shape = getattr(sample, "shape", None)
    return [int(shape[0])] if shape is not None and len(shape) == 1 else []


def _padded_leaf(samples: list[Any], batch: Any) -> int:
    """Which of them the batch is padded by; -1: none."""
    by_leaf = list(zip(*map(_lengths, samples)))
    sizes = {size for tensor in tensors(batch) for size in tuple(tensor.shape)[1:]}
    for leaf, lengths in enumerate(by_leaf):
        if max(lengths) in sizes:
            return leaf
    return -1
