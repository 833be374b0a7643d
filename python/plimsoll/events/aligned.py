"""Runs of a compiled job, whose code the compiler wrote for each batch: it sums in other pieces and
keeps other things where the sizes are others.

What is in one run alone is put into the other with no elements. Each is as it was at its own
batch, but for one thing: where both have a tensor it dies as it does in the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from .event import (
    Call,
    Event,
    Free,
    Label,
    Layout,
    PartBegin,
    Phase,
    Recorded,
    StepBegin,
    Tensor,
)


class NotAligned(Exception):
    """They differ in more than what a compiler writes."""


class Aligned(NamedTuple):
    """Event by event beside each other, with the numbers of the first."""

    first: Recorded
    second: Recorded
    #: Calls that are in one of them alone, and all.
    alone: int
    calls: int


def aligned(first: Recorded, second: Recorded) -> Aligned:
    return _Aligning(first, second).run()


class _Group(NamedTuple):
    """An event, and what dies before the next."""

    event: Event
    frees: list[int]


class _Aligning:
    def __init__(self, first: Recorded, second: Recorded) -> None:
        self._runs = (first, second)
        self._layouts = (list(first.layouts), list(second.layouts))
        self._emptied: dict[tuple[int, int], int] = {}
        #: By the number of a storage in the second run: that in the first, or a new one.
        self._numbers = {0: 0}
        self._next = 1 + max(_numbers(first.events), default=0)
        #: New ones.
        self._alone: set[int] = set()
        self._events: tuple[list[Event], list[Event]] = ([], [])
        self._calls_alone = 0
        #: What the first run has let go of, which the second may still read.
        self._dead: set[int] = set()

    def run(self) -> Aligned:
        parts = [list(_parts(run.events)) for run in self._runs]
        if [_begin(part) for part in parts[0]] != [_begin(part) for part in parts[1]]:
            raise NotAligned
        for ours, theirs in zip(*parts):
            self._part(ours, theirs)
        first, second = (Recorded(*run) for run in zip(self._events, self._layouts))
        calls = sum(isinstance(event, Call) for event in self._events[0])
        return Aligned(first, second, self._calls_alone, calls)

    def _part(self, ours: list[_Group], theirs: list[_Group]) -> None:
        signs = [
            [_sign(group.event, run.layouts) for group in groups]
            for run, groups in zip(self._runs, (ours, theirs))
        ]
        matcher = SequenceMatcher(None, signs[0], signs[1], autojunk=False)
        for kind, a, a_end, b, b_end in matcher.get_opcodes():
            if kind == "equal":
                for left, right in zip(ours[a:a_end], theirs[b:b_end]):
                    self._pair(left, right)
                continue
            for left in ours[a:a_end]:
                self._ours(left)
            for right in theirs[b:b_end]:
                self._theirs(right)

    def _pair(self, ours: _Group, theirs: _Group) -> None:
        beside = self._counterpart(ours.event, theirs.event)
        if beside is None:
            self._ours(_Group(ours.event, []))
            self._theirs(_Group(theirs.event, []))
        else:
            self._add(ours.event, beside)
        self._free(ours.frees)
        self._free_theirs(theirs.frees)

    def _ours(self, group: _Group) -> None:
        event = group.event
        if not isinstance(event, (Call, Label)):
            raise NotAligned
        self._calls_alone += isinstance(event, Call)
        self._add(event, self._empty(event, 0) if isinstance(event, Call) else event)
        self._free(group.frees)

    def _theirs(self, group: _Group) -> None:
        event = group.event
        if isinstance(event, Call):
            self._calls_alone += 1
            for new in event.made:
                self._numbers[new.storage] = self._next
                self._alone.add(self._next)
                self._next += 1
            call = self._renumbered(event)
            self._add(self._empty(call, 1), call)
        elif not isinstance(event, Label):
            raise NotAligned
        self._free_theirs(group.frees)

    def _add(self, ours: Event, theirs: Event) -> None:
        self._events[0].append(ours)
        self._events[1].append(theirs)

    def _free(self, numbers: list[int]) -> None:
        self._dead.update(numbers)
        for number in numbers:
            self._add(Free(number), Free(number))

    def _free_theirs(self, numbers: list[int]) -> None:
        known = [self._numbers.get(number, 0) for number in numbers]
        self._free([number for number in known if number in self._alone])

    # Counterparts.

    def _counterpart(self, a: Event, b: Event) -> Event | None:
        """`b` with the numbers of the first run."""
        if isinstance(a, Call) and isinstance(b, Call):
            return self._call(a, b)
        if isinstance(a, (StepBegin, Phase, Label)):
            return a
        if isinstance(a, PartBegin):
            return b
        storage = getattr(b, "storage", None)
        if storage is not None:
            self._numbers[storage] = a.storage  # type: ignore[union-attr]
            b.storage = a.storage  # type: ignore[union-attr]
        return b

    def _call(self, a: Call, b: Call) -> Call | None:
        if [new.result for new in a.made] != [new.result for new in b.made]:
            return None
        fresh = {new.storage: old.storage for old, new in zip(a.made, b.made)}
        numbers = {**self._numbers, **fresh} if fresh else self._numbers
        pairs: list[tuple[Any, Any]] = [(a.args, b.args), (a.results, b.results)]
        pairs += [(value, b.kwargs.get(key)) for key, value in a.kwargs.items()]
        if a.kwargs.keys() != b.kwargs.keys() or not all(
            self._alike(x, y, numbers) for x, y in pairs
        ):
            return None
        self._numbers.update(fresh)
        return self._renumbered(b)

    def _alike(self, a: Any, b: Any, numbers: dict[int, int]) -> bool:
        if type(a) is not type(b):
            return False
        if isinstance(a, Tensor):
            x, y = self._runs[0].layouts[a.layout], self._runs[1].layouts[b.layout]
            same = x.dtype == y.dtype and len(x.sizes) == len(y.sizes)
            return same and a.flags == b.flags and numbers.get(b.storage) == a.storage
        if isinstance(a, list):
            return len(a) == len(b) and all(self._alike(x, y, numbers) for x, y in zip(a, b))
        return isinstance(a, (int, float, str)) and not isinstance(a, bool) or bool(a == b)

    def _renumbered(self, call: Call) -> Call:
        return Call(
            call.op,
            call.place,
            self._renumbered_in(call.args),
            {key: self._renumbered_in(value) for key, value in call.kwargs.items()},
            self._renumbered_in(call.results),
            [new._replace(storage=self._numbers[new.storage]) for new in call.made],
        )

    def _renumbered_in(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            number = self._numbers.get(value.storage, 0)
            return value._replace(storage=0 if number in self._dead else number)
        if type(value) is list:
            return [self._renumbered_in(element) for element in value]
        return value

    # What the other run lacks.

    def _empty(self, call: Call, run: int) -> Call:
        """A call of this run, as the other one has it."""
        return Call(
            call.op,
            call.place,
            self._empty_in(call.args, run),
            {key: self._empty_in(value, run) for key, value in call.kwargs.items()},
            self._empty_in(call.results, run),
            [new._replace(size=0) for new in call.made],
        )

    def _empty_in(self, value: Any, run: int) -> Any:
        if isinstance(value, Tensor):
            return value._replace(layout=self._empty_layout(value.layout, run))
        if type(value) is list:
            return [self._empty_in(element, run) for element in value]
        return value

    def _empty_layout(self, index: int, run: int) -> int:
        key = (run, index)
        if key not in self._emptied:
            dtype, sizes, strides = self._layouts[run][index]
            others = self._layouts[1 - run]
            self._emptied[key] = len(others)
            others.append(Layout(dtype, (0, *sizes[1:]) if sizes else sizes, strides))
        return self._emptied[key]


def _numbers(events: list[Event]) -> Iterator[int]:
    for event in events:
        if isinstance(event, Call):
            yield from (new.storage for new in event.made)
        else:
            yield getattr(event, "storage", 0)


_BEGINS = (StepBegin, PartBegin, Phase)


def _begin(part: list[_Group]) -> str:
    event = part[0].event
    name = event.stage if isinstance(event, PartBegin) else getattr(event, "name", "")
    return f"{type(event).__name__} {name}"


def _parts(events: list[Event]) -> Iterator[list[_Group]]:
    """Each step's phases."""
    part: list[_Group] = []
    for event in events:
        if isinstance(event, Free):
            if part:
                part[-1].frees.append(event.storage)
            continue
        if isinstance(event, _BEGINS) and part:
            yield part
            part = []
        part.append(_Group(event, []))
    if part:
        yield part


def _sign(event: Event, layouts: list[Layout]) -> Any:
    """What counterparts have in common."""
    if isinstance(event, Call):
        kinds = tuple(
            (layouts[t.layout].dtype, len(layouts[t.layout].sizes)) for t in event.results
        )
        return event.op, event.place, kinds, len(event.args)
    if isinstance(event, Label):
        return "label", event.category
    if isinstance(event, _BEGINS):
        return _begin([_Group(event, [])])
    return type(event).__name__, getattr(event, "name", "")
