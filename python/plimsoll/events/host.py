"""What a script has in the host's memory: the tensors there, and what goes through it on the way to
a file. Peaks, from one cut to the next."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..base.places import current_line
from .event import HostPeak

#: Smaller ones are nothing beside what Python itself takes.
_LEAST = 64 << 10
_WORTH_A_LINE = 4 << 20


class _Held(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("address", "size")
    address: int
    size: int


class HostMemory:
    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._now = 0
        self._peak = 0
        self._where = ""
        #: The size at which that was looked up.
        self._told = 0

    def see(self, tensor: torch.Tensor) -> None:
        """A result of an operator, on the host."""
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size < _LEAST or storage._cdata in self._held:
            return
        held = _Held(storage, self._gone)
        held.address, held.size = storage._cdata, size
        self._held[held.address] = held
        self._now += size
        self._rise_to(self._now)

    def _gone(self, held: Any) -> None:
        if self._held.pop(held.address, None) is not None:
            self._now -= held.size

    def passes_through(self, size: int) -> None:
        """So much at a time, beside what is there: torch.save and torch.load copy one storage after
        the other."""
        self._rise_to(self._now + size)

    def _rise_to(self, size: int) -> None:
        if size > self._peak:
            # To find the line takes longer than all else here.
            if size - self._told > _WORTH_A_LINE or not self._where:
                self._where, self._told = current_line() or "", size
            self._peak = size

    def cut(self) -> HostPeak:
        """The peak since the last cut."""
        peak = HostPeak(self._peak, self._where)
        self._peak, self._told, self._where = self._now, self._now, ""
        return peak


def resident() -> int:
    """Of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
