"""What the loaders of a script give, batch by batch."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable

from ..events.host import HostMemory
from .data_sizes import DataSizes
from .heaviest import OF_ALL
from .later import Later
from .loading import Loading, has_workers


class Fetching:
    def __init__(
        self, host: HostMemory, later: Later, ends: Callable[[Any], bool], measures: bool
    ) -> None:
        """`ends`: whether an iterator of a loader is to come to its end now. `measures`: the sizes
        of all batches are wanted, of the loader that gives the first one."""
        self._host = host
        self._later = later
        self._ends = ends
        self._loading = Loading(host)
        self.data = DataSizes() if measures else None
        self._measured: Any = None
        #: A loader makes a batch.
        self.is_under_way = False
        #: By data set: batches that loaders have given, in all, and by the optimizer's turn in each
        #: step.
        self.fetched: Counter[int] = Counter()
        self._by_turn: list[Counter[int]] = []

    def turn(self) -> None:
        """An optimizer has its turn in a step."""
        self._by_turn.append(self.fetched.copy())

    def in_last_step(self) -> Counter[int]:
        """By data set: batches between the last two turns."""
        if len(self._by_turn) < 2:
            return Counter()
        before, after = self._by_turn[-2:]
        return after - before

    def next_batch(self, iterator: Any, give: Callable[[], Any]) -> Any:
        made = give
        if has_workers(iterator):

            def made() -> Any:
                with self._host.elsewhere():
                    return give()

        self.is_under_way = True
        try:
            batch = self._next_batch(iterator, made)
        except StopIteration:
            self._loading.end(iterator)
            if self.data is not None and self._measures(iterator) and not self._later.begun:
                self.data.complete = True
            raise
        finally:
            self.is_under_way = False
        return self._loading.given(iterator, batch)

    def _next_batch(self, iterator: Any, give: Callable[[], Any]) -> Any:
        if self._ends(iterator):
            return self._heaviest_left(iterator, give)
        if self.data is not None and self._measured is None and not self._later.begun:
            self._measured = iterator
            self.data.follow(iterator)
        batch = give()
        if not self._later.begun:
            self._later.heaviest.see(id(iterator._dataset), batch)
            if self.data is not None and self._measures(iterator):
                self.data.add(batch)
        return batch

    def _heaviest_left(self, iterator: Any, give: Callable[[], Any]) -> Any:
        """Where the loader ends, if it does not with what it has given."""
        heaviest = self._later.heaviest
        if self.data is not None and self._measures(iterator):
            heaviest.on_batch = self.data.add
        batch = self._later.heaviest_batch(iterator, give)
        if self.data is not None and self._measures(iterator):
            self.data.complete = heaviest.looked == OF_ALL
        if batch is None:
            raise StopIteration
        return batch

    def _measures(self, iterator: Any) -> bool:
        return iterator is self._measured
