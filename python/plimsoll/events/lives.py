"""When each storage of a recorded run was made, used last and freed."""

from __future__ import annotations

import bisect
import math

from .event import Call, Event, Free, Label, StepBegin, tensors_in

#: What the allocator gives at least; less than that is not worth a line.
_SMALLEST = 512


class Lives:
    """Of one run. Instants are counted in events other than frees, which every run has alike."""

    def __init__(self, events: list[Event], host_reads: dict[int, int]) -> None:
        """`host_reads`: by storage, when it was last copied to the host."""
        self.made: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.freed: dict[int, int] = {}
        self.size: dict[int, int] = {}
        #: By storage, the step whose batch it is of.
        self.batch_of: dict[int, int] = {}
        #: Gradients, the optimizer's state, inputs: the loop or torch holds them.
        self.labelled: set[int] = set()
        self._calls: list[int] = []
        position, step = 0, -1
        for event in events:
            if isinstance(event, Free):
                self.freed[event.storage] = position
                continue
            step += isinstance(event, StepBegin)
            if isinstance(event, Call):
                self._call(event, position)
            elif isinstance(event, Label):
                self.labelled.update(event.storages)
                if event.category == "input":
                    self.batch_of.update(dict.fromkeys(event.storages, step))
            position += 1
        for storage, read in host_reads.items():
            self.used[storage] = max(read, self.used.get(storage, -1))

    def _call(self, call: Call, position: int) -> None:
        self._calls.append(position)
        for tensor in tensors_in([*call.args, *call.kwargs.values(), *call.results]):
            self.used[tensor.storage] = position
        for new in call.made:
            assert isinstance(new.size, int)  # of one run
            self.made[new.storage], self.size[new.storage] = position, new.size

    def _calls_between(self, begin: float, end: float) -> bool:
        index = bisect.bisect_left(self._calls, begin)
        return index < len(self._calls) and self._calls[index] < end

    def unused_from(self, position: int, storage: int) -> bool:
        return self.used.get(storage, -1) < position

    def wasted_from(self, position: int, storage: int) -> int:
        """Its bytes, if nothing uses it from here on, and yet something runs before it is freed."""
        if self.size.get(storage, 0) <= _SMALLEST or not self.unused_from(position, storage):
            return 0
        freed = self.freed.get(storage, math.inf)
        return self.size[storage] if self._calls_between(position, freed) else 0

    def nameless_from(self, position: int, named: set[int]) -> int:
        """What is wasted and has no name: a graph holds it, or what was not looked into."""
        return sum(
            self.wasted_from(position, storage)
            for storage in self.size
            if self.made[storage] < position and storage not in named | self.labelled
        )

    def moved(self, other: Lives) -> list[tuple[int, int]] | None:
        """What `other` frees before a call that comes before its free here. None if it frees
        anything later."""
        frees = []
        for storage in self.size:
            here = self.freed.get(storage, math.inf)
            there = other.freed.get(storage, math.inf)
            if self._calls_between(here, there):
                return None
            # No call comes after the last step, but the step comes again.
            if self._calls_between(there, here) or there < here == math.inf:
                frees.append((int(there), storage))
        return sorted(frees)
