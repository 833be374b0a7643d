"""What loaders have in the host's memory: their workers, and the batches that wait there.

A worker is another process: what it made comes through shared memory. In the process that trains a
thread pins it, if the loader is told to. `prefetch_factor` batches of each worker are ahead of the
one at hand.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from ..events.host import HostMemory
from .later import length_of

_PREFETCHED = 2


class _Ahead:
    """The batches that an iterator of a loader has ready."""

    def __init__(self, loader: Any, length: int) -> None:
        self.workers = int(loader.num_workers)
        self.pins = bool(loader.pin_memory)
        prefetched = loader.prefetch_factor or _PREFETCHED
        self.most = self.workers * prefetched
        self.length = length
        if length:
            self.most = min(self.most, length)
        self.persistent = bool(getattr(loader, "keeps_workers", False))
        #: Workers that end with the iterator.
        self.ends = 0
        #: Of each, its requests of pinned memory.
        self.pinned: list[list[int]] = []
        self.shared = 0
        self.sizes: list[int] = []


def has_workers(iterator: Any) -> bool:
    loader = getattr(iterator, "loader", None)
    return loader is not None and int(loader.num_workers) > 0


class Loading:
    def __init__(self, host: HostMemory) -> None:
        self._host = host
        self._ahead: weakref.WeakKeyDictionary[Any, _Ahead] = weakref.WeakKeyDictionary()
        #: Loaders whose workers wait for the next iterator.
        self._keep: weakref.WeakSet[Any] = weakref.WeakSet()

    def given(self, iterator: Any, batch: Any) -> Any:
        """What the loop gets for a batch."""
        loader = getattr(iterator, "loader", None)
        if loader is None:
            return batch
        ahead = self._ahead.get(iterator)
        if ahead is None:
            ahead = self._begin(iterator, loader)
        sizes = [one.untyped_storage().nbytes() for one in _host_tensors(batch)]
        self._share(ahead, sum(sizes))
        if not ahead.pins:
            return batch
        # By the time that a batch is asked for, another one was pinned for the one before. What is
        # given is the first of them.
        while len(ahead.pinned) < ahead.most:
            ahead.pinned.append([self._host.pinned.ask(s) for s in ahead.sizes or sizes if s])
        for request in ahead.pinned.pop(0) if ahead.pinned else []:
            self._host.pinned.end(request)
        ahead.sizes = sizes
        return pin_memory(batch)

    def _begin(self, iterator: Any, loader: Any) -> _Ahead:
        ahead = _Ahead(loader, length_of(iterator))
        self._ahead[iterator] = ahead
        if ahead.persistent:
            self._keep_workers(loader, ahead.workers)
        else:
            ahead.ends = ahead.workers
            self._host.beside(ahead.workers, 0)
        # A loop that is left before its end lets go of it.
        weakref.finalize(iterator, self._end, ahead).atexit = False
        return ahead

    def _keep_workers(self, loader: Any, workers: int) -> None:
        """Until the loader itself goes."""
        if loader not in self._keep:
            self._keep.add(loader)
            self._host.beside(workers, 0)
            weakref.finalize(loader, self._host.beside, -workers, 0).atexit = False

    def end(self, iterator: Any) -> None:
        """It has no more batches: its workers end."""
        ahead = self._ahead.get(iterator)
        if ahead is not None:
            self._end(ahead)

    def _share(self, ahead: _Ahead, size: int) -> None:
        """A batch is as large as those ahead of it. Pinned, those have left shared memory."""
        count = 0
        if ahead.workers:
            count = min(ahead.workers, ahead.most) if ahead.pins else ahead.most + 1
            count = min(count, ahead.length) if ahead.length else count
        if count * size > ahead.shared:
            self._host.beside(0, count * size - ahead.shared)
            ahead.shared = count * size

    def _end(self, ahead: _Ahead) -> None:
        self._host.beside(-ahead.ends, -ahead.shared)
        for requests in ahead.pinned:
            for request in requests:
                self._host.pinned.end(request)
        ahead.ends = ahead.shared = ahead.most = 0
        ahead.pinned = []


def _host_tensors(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _collect(batch, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            found.append(value)
    elif isinstance(value, dict) or hasattr(value, "data") and isinstance(value.data, dict):
        for one in (value if isinstance(value, dict) else value.data).values():
            _collect(one, found)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _collect(one, found)
