"""What a script has in the host's memory: the tensors there, and what goes through it on the way to
a file. Peaks, from one cut to the next."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ..base.places import current_line
from .event import HostPeak

#: Smaller ones are nothing beside what Python itself takes.
_LEAST = 64 << 10
_WORTH_A_LINE = 4 << 20


class _Held(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("address", "size", "request")
    address: int
    size: int
    #: Of pinned memory; 0 for other.
    request: int


class PinnedLog:
    """Requests of pinned memory and their ends, in order. What the allocator makes of them depends
    on its settings: that is for whoever reads the file. A request ends with its tensor. In a loop
    that never waits for the device the memory is free only when the device has copied it."""

    def __init__(self) -> None:
        self._count = 0
        #: A request: its bytes. The end of the k-th: -k.
        self._events: list[int] = []
        #: Sizes of single numbers that were read.
        self._read: set[int] = set()

    def ask(self, size: int) -> int:
        self._count += 1
        self._events.append(size)
        return self._count

    def end(self, request: int) -> None:
        self._events.append(-request)

    def read(self, size: int) -> None:
        """A number of the device, which comes by way of pinned memory."""
        if size not in self._read:
            self._read.add(size)
            self.end(self.ask(size))

    def cut(self) -> list[int]:
        events, self._events = self._events, []
        return events


class _Beside(NamedTuple):
    workers: int
    shared: int


class HostMemory:
    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._now = 0
        self._peak = 0
        self._where = ""
        #: The size at which that was looked up.
        self._told = 0
        self._elsewhere = False
        self.pinned = PinnedLog()
        #: Processes that fetch batches, and batches in shared memory: now, and at most.
        self._beside = self._most_beside = _Beside(0, 0)

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is made inside is made in another process."""
        before, self._elsewhere = self._elsewhere, True
        try:
            yield
        finally:
            self._elsewhere = before

    def see(self, tensor: torch.Tensor) -> None:
        """A result of an operator, on the host."""
        if self._elsewhere:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size < _LEAST or storage._cdata in self._held:
            return
        self._hold(storage, request=0)
        self._now += size
        self._rise_to(self._now)

    def _hold(self, storage: Any, request: int) -> None:
        held = _Held(storage, self._gone)
        held.address, held.size = storage._cdata, storage.nbytes()
        held.request = request
        self._held[held.address] = held

    def pin(self, tensor: torch.Tensor) -> None:
        """Its memory is pinned, and was when it was made."""
        storage = tensor.untyped_storage()
        known = self._held.pop(storage._cdata, None)
        if known is not None:
            self._now -= known.size
        if storage.nbytes() > 0:
            request = self.pinned.ask(storage.nbytes())
            self._hold(storage, request)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        held = self._held.get(tensor.untyped_storage()._cdata)
        return held is not None and held.request > 0

    def _gone(self, held: Any) -> None:
        address, size, request = held.address, held.size, held.request
        if self._held.get(address) is not held:
            return
        del self._held[address]
        if not request:
            self._now -= size
        else:
            self.pinned.end(request)

    def beside(self, workers: int, shared: int) -> None:
        """So many more, or fewer."""
        self._beside = _Beside(self._beside.workers + workers, self._beside.shared + shared)
        self._most_beside = _Beside(*map(max, zip(self._beside, self._most_beside)))

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
        peak = HostPeak(
            self._peak, self._where, self.pinned.cut(), *self._most_beside, self._now
        )
        self._peak, self._told, self._where = self._now, self._now, ""
        self._most_beside = self._beside
        return peak


def resident() -> int:
    """Of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
