"""Steps that do some things once for each sample, and so do more at the larger batch.

The run at the smaller batch is made as long as the other: what it lacks is put in with no elements.
Then every call has a counterpart, and one that is there at the larger batch alone grows with each
further sample, as the calls do that it stands for.

Calls are counterparts if they run the same operator in the same line on tensors that are each
other's counterparts. A call of the larger run that has none belongs to a further sample, if the
smaller run does the same for others. When tensors die is taken from the larger run. What a sample
lets go before the next one makes its own is there once, however many samples there are.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .event import (
    Buffer,
    Call,
    Event,
    Free,
    Label,
    Layout,
    NewStorage,
    Parameter,
    Recorded,
    Tensor,
)

#: What makes storages: a call's site, and which of its results.
Maker = tuple[Any, int]


class NoCounterpart(Exception):
    """It is not samples by which the runs differ."""


def lengthened(first: Recorded, second: Recorded) -> Recorded:
    """The first run, event by event beside the second."""
    return _Lengthening(first, second).run()


class _Lengthening:
    def __init__(self, first: Recorded, second: Recorded) -> None:
        self._first, self._second = first, second
        self._layouts = list(first.layouts)
        self._emptied: dict[int, int] = {}
        #: By the number of a storage in the first run: its number in the second.
        self._numbers = {0: 0}
        #: The other way round.
        self._old: dict[int, int] = {0: 0}
        #: By the number of a further sample's storage: what of the first run it goes on from, as a
        #: running sum does.
        self._goes_on: dict[int, set[int]] = {}
        #: By the number of a storage in the second run: what made it. The same call makes the
        #: counterparts of all samples, and a backward comes by the last one first.
        self._made_by: dict[int, tuple[Maker, int]] = {}
        self._swapped: list[tuple[int, int]] = []
        self._sites = {event.site for event in first.events if isinstance(event, Call)}
        before, after = _most_together(first.events), _most_together(second.events)
        #: What makes storages of which the larger run has more at one time.
        self._grows = {made for made, n in after.items() if n > before[made]}

    def run(self) -> Recorded:
        waiting = [event for event in self._first.events if not isinstance(event, Free)]
        made: list[Event] = []
        at = 0
        for event in self._second.events:
            if isinstance(event, Free):
                made.append(event)
                continue
            if isinstance(event, Call):
                for new in event.made:
                    maker = event.site, new.result
                    self._made_by[new.storage] = maker, event.results[new.result].layout
            beside = self._beside(waiting[at], event) if at < len(waiting) else None
            at += beside is not None
            made.append(beside or self._empty(event))
        if at < len(waiting):
            raise NoCounterpart
        return Recorded(made, self._layouts)

    def _beside(self, a: Event, b: Event) -> Event | None:
        """`a` with the numbers of the second run, if the two are counterparts."""
        if isinstance(a, Label) and isinstance(b, Label):
            return b if a.category == b.category else None
        if isinstance(a, Parameter) and isinstance(b, Parameter):
            self._counterparts(a.storage, b.storage)
            return Parameter(b.storage, a.layout, a.name, a.trainable, a.piece)
        if isinstance(a, Buffer) and isinstance(b, Buffer):
            self._counterparts(a.storage, b.storage)
            return Buffer(b.storage, a.layout, a.name)
        if isinstance(a, Call) and isinstance(b, Call):
            try:
                return self._call(a, b)
            except NoCounterpart:
                return None
        return a if a == b else None

    def _call(self, a: Call, b: Call) -> Call:
        if a.site != b.site or a.kwargs.keys() != b.kwargs.keys():
            raise NoCounterpart
        self._swapped = []
        args = self._value(a.args, b.args)
        named = {key: self._value(value, b.kwargs[key]) for key, value in a.kwargs.items()}
        if [new.result for new in a.made] != [new.result for new in b.made]:
            raise NoCounterpart
        fresh = {old.storage: new.storage for old, new in zip(a.made, b.made)}
        if len(a.results) != len(b.results):
            raise NoCounterpart
        results = [self._tensor(x, y, fresh) for x, y in zip(a.results, b.results)]
        made = [old._replace(storage=new.storage) for old, new in zip(a.made, b.made)]
        for old, number in self._swapped:
            self._old.pop(self._numbers[old], None)
            self._counterparts(old, number)
        for old, number in fresh.items():
            self._counterparts(old, number)
        return Call(a.op, a.place, args, named, results, made)

    def _counterparts(self, old: int, new: int) -> None:
        self._numbers[old] = new
        self._old[new] = old

    def _value(self, a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return self._tensor(a, b, {})
        if isinstance(a, list) and isinstance(b, list):
            return self._list(a, b)
        if type(a) is not type(b) or (isinstance(a, (str, bool)) and a != b):
            raise NoCounterpart
        return a

    def _list(self, a: list[Any], b: list[Any]) -> list[Any]:
        """Of tensors the second may have more."""
        more = len(b) - len(a)
        made: list[Any] = []
        waiting = list(reversed(a))
        for element in b:
            if more > 0 and self._is_more(waiting, element):
                made.append(self._further(element))
                more -= 1
            elif not waiting:
                raise NoCounterpart
            else:
                made.append(self._value(waiting.pop(), element))
        if waiting:
            raise NoCounterpart
        return made

    def _is_more(self, waiting: list[Any], element: Any) -> bool:
        if not isinstance(element, Tensor) or not waiting:
            return isinstance(element, Tensor)
        beside = waiting[-1]
        goes_on = isinstance(beside, Tensor) and beside.storage in self._goes_on.get(
            element.storage, ()
        )
        return element.storage not in self._old and not goes_on

    def _tensor(self, a: Tensor, b: Any, fresh: dict[int, int]) -> Tensor:
        if not isinstance(b, Tensor) or a.flags != b.flags:
            raise NoCounterpart
        x, y = self._first.layouts[a.layout], self._second.layouts[b.layout]
        known = fresh.get(a.storage, self._numbers.get(a.storage))
        if x.dtype != y.dtype or len(x.sizes) != len(y.sizes):
            raise NoCounterpart
        if known != b.storage and a.storage not in self._goes_on.get(b.storage, ()):
            if b.storage in self._old or not self._alike(known, b.storage):
                raise NoCounterpart
            self._swapped.append((a.storage, b.storage))
        return a._replace(storage=b.storage)

    def _alike(self, one: int | None, other: int) -> bool:
        return one in self._made_by and self._made_by[one] == self._made_by.get(other)

    # What the first run lacks.

    def _empty(self, event: Event) -> Event:
        if isinstance(event, Label):
            return event
        if not isinstance(event, Call) or event.site not in self._sites:
            raise NoCounterpart
        self._note_running_sums(event.args, event.results)
        return Call(
            event.op,
            event.place,
            self._emptied_in(event.args),
            {key: self._emptied_in(value) for key, value in event.kwargs.items()},
            self._emptied_in(event.results),
            [self._emptied_storage(new) for new in event.made],
        )

    def _emptied_storage(self, new: NewStorage) -> NewStorage:
        return new._replace(size=0) if self._is_more_of(new.storage) else new

    def _is_more_of(self, number: int) -> bool:
        """Whether a storage without a counterpart is there beside those of other samples."""
        return number not in self._made_by or self._made_by[number][0] in self._grows

    def _note_running_sums(self, args: Any, results: list[Tensor]) -> None:
        given = [arg for arg in args if isinstance(arg, Tensor)]
        for result in results:
            for arg in given:
                if arg.layout == result.layout and arg.storage != result.storage:
                    sums = self._goes_on.setdefault(result.storage, set())
                    sums |= self._goes_on.get(arg.storage, set())
                    sums |= {self._old[arg.storage]} if arg.storage in self._old else set()

    def _emptied_in(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._emptied_in(element) for element in value]
        if not isinstance(value, Tensor):
            return value
        if value.storage in self._old and value.storage:
            return value._replace(layout=self._layout(value.layout, empty=False))
        return self._further(value)

    def _further(self, tensor: Tensor) -> Tensor:
        """One of a further sample, as the first run has it."""
        empty = self._is_more_of(tensor.storage)
        return tensor._replace(layout=self._layout(tensor.layout, empty))

    def _layout(self, of: int, empty: bool) -> int:
        """The second run's, in the first run's list; with no elements, unless it has one alone."""
        dtype, sizes, strides = self._second.layouts[of]
        key = 2 * of + empty
        if key not in self._emptied:
            self._emptied[key] = len(self._layouts)
            emptied = (0, *sizes[1:]) if empty and sizes else sizes
            self._layouts.append(Layout(dtype, tuple(emptied), strides))
        return self._emptied[key]


def _most_together(events: list[Event]) -> Counter[Maker]:
    """By what made them, result by result: how many storages are there at one time."""
    made_by: dict[int, Maker] = {}
    now: Counter[Maker] = Counter()
    most: Counter[Maker] = Counter()
    for event in events:
        if isinstance(event, Call):
            for new in event.made:
                maker = made_by[new.storage] = event.site, new.result
                now[maker] += 1
                most[maker] = max(most[maker], now[maker])
        elif isinstance(event, Free) and event.storage in made_by:
            now[made_by[event.storage]] -= 1
    return most
