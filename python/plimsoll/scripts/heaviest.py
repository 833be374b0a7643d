"""The heaviest batch of a loader's data: batches of changing sizes are decided by their longest
sample, and a job dies on it long after the steps that were seen."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: A heavier one is worth a step of its own.
_HEAVIER = 1.02
#: Of the processor: a data set that is slow to read is not read to its end.
_MOST_SECONDS = 2.0
#: By the clock, for one on a disk that is far away.
_LONGEST_SECONDS = 20.0


#: How far the data were looked through, in the order in which less is known.
OF_ALL, OF_FIRST = "of_all", "of_first"


class Heaviest:
    """By data set: what the batches of the steps weigh."""

    def __init__(self, seconds: float = _MOST_SECONDS) -> None:
        """`seconds`: of the processor, for data that are slow to read."""
        self._seen: dict[int, int] = {}
        self._seconds = seconds
        #: Called with each batch that is looked at.
        self.on_batch: Callable[[Any], None] = lambda batch: None
        #: How far the data were looked through; nothing before that.
        self.looked = ""

    def see(self, data: int, batch: Any) -> None:
        self._seen[data] = max(self._seen.get(data, 0), weight_of(batch))

    def find(self, data: int, give: Callable[[], Any]) -> Any:
        """The heaviest that is left, or None where no other is heavier than those that were seen.
        `give` ends with a StopIteration."""
        most, found = int(self._seen.get(data, 0) * _HEAVIER), None
        began, clock = time.process_time(), time.monotonic()
        self.looked = OF_FIRST
        longest = max(_LONGEST_SECONDS, self._seconds)
        while True:
            try:
                # Tensors of the host alone: nothing of it is to be written down.
                with _disable_current_modes():
                    batch = give()
            except StopIteration:
                self.looked = OF_ALL
                break
            self.on_batch(batch)
            slow = time.process_time() - began > self._seconds
            if slow or time.monotonic() - clock > longest:
                break
            weight = weight_of(batch)
            if weight > most:
                most, found = weight, batch
        return found


def weight_of(value: Any) -> int:
    """Elements of all tensors."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, Mapping):
        return sum(weight_of(element) for element in value.values())
    if isinstance(value, (list, tuple)):
        return sum(weight_of(element) for element in value)
    return 0
