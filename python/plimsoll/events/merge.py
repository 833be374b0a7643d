"""Two runs of one job, at two batch sizes, as one list of events.

What is equal stands once, a number that differs as a pair.
"""

from __future__ import annotations

from typing import Any

from ..base.errors import CaptureError
from ..base.notes import Note
from .event import (
    Buffer,
    Call,
    Event,
    Free,
    Label,
    Layout,
    NewStorage,
    Number,
    Pair,
    Parameter,
    PartBegin,
    Phase,
    Recorded,
    Tensor,
)
from .per_sample import NoCounterpart, lengthened
from .step_file import Tables


class _Differs(Exception):
    """The two runs part here."""


def merged(
    first: Recorded, second: Recorded, tables: Tables, batches: tuple[int, int], note: Note
) -> list[Event]:
    """One list, with the layouts of `tables`, or an error that names where the runs part, unless it
    is for some calls that come once for each sample. Of what follows the steps, as much as is the
    same in both."""
    (small, *small_parts), (large, *large_parts) = (_parts(run) for run in (first, second))
    merger = _Merger(first, second, tables)
    try:
        events = _side_by_side(merger, small, large, batches)
    except CaptureError as parted:
        try:
            longer = lengthened(Recorded(small, first.layouts), Recorded(large, second.layouts))
            merger = _Merger(longer, second, tables)
            events = _side_by_side(merger, longer.events, large, batches)
        except (NoCounterpart, CaptureError):
            raise parted from None
        note(
            f"the step calls some operators once for each sample; those that batch {batches[1]} "
            f"has more than batch {batches[0]} stand for those of all further samples"
        )
        # Storages have other numbers now.
        if small_parts:
            note(_not_counted(small_parts[0]))
        return events
    for part in zip(small_parts, large_parts):
        try:
            events += _side_by_side(merger, *part, batches)
        except CaptureError:
            note(_not_counted(part[0]) + f", since it is not the same at batch {batches[0]} and "
                 f"at batch {batches[1]}")
            break
    return events


def steps_of(run: Recorded) -> Recorded:
    """Without what follows them."""
    return Recorded(_parts(run)[0], run.layouts)


def _parts(run: Recorded) -> list[list[Event]]:
    """The steps, and each part that follows them."""
    parts: list[list[Event]] = [[]]
    for event in run.events:
        if isinstance(event, PartBegin):
            parts.append([])
        parts[-1].append(event)
    return parts


def _not_counted(part: list[Event]) -> str:
    begin = part[0]
    assert isinstance(begin, PartBegin)
    return f"what the script does from its {begin.stage} on, after the steps, is not counted"


def _side_by_side(
    merger: _Merger, first: list[Event], second: list[Event], batches: tuple[int, int]
) -> list[Event]:
    events: list[Event] = []
    _agree_on_frees(first, second)
    for index, pair in enumerate(zip(first, second)):
        try:
            events.append(merger.event(*pair))
        except _Differs:
            raise _parted(index, *pair, batches) from None
    if len(first) != len(second):
        index = len(events)
        a, b = (run[index] if len(run) > index else None for run in (first, second))
        raise _parted(index, a, b, batches)
    return events


def _agree_on_frees(first: list[Event], second: list[Event]) -> None:
    """Frees with nothing between them may come in another order in each run, as when autocast
    drops its copies of the weights, kept by address. Then the order is that of their making."""
    index, length = 0, min(len(first), len(second))
    while index < length:
        end = index
        while end < length and isinstance(first[end], Free) and isinstance(second[end], Free):
            end += 1
        if first[index:end] != second[index:end]:
            first[index:end] = sorted(first[index:end], key=_storage_of)
            second[index:end] = sorted(second[index:end], key=_storage_of)
        index = end + 1


def _storage_of(free: Event) -> int:
    assert isinstance(free, Free)
    return free.storage


def _parted(
    index: int, a: Event | None, b: Event | None, batches: tuple[int, int]
) -> CaptureError:
    lines = [event.place.where for event in (a, b) if isinstance(event, Call)]
    return CaptureError(
        f"the step does not do the same at batch {batches[0]} and at batch {batches[1]}: "
        f"event {index} is {_described(a)} in the one and {_described(b)} in the other",
        where=next((line for line in lines if line), None),
        hint="Choose two batch sizes at which it does (batches=, or --batches); "
        "a batch of 1 is often a case of its own",
    )


def _described(event: Event | None) -> str:
    if event is None:
        return "the end"
    if isinstance(event, Call):
        return f"{event.op} at {event.place.where}" if event.place.where else event.op
    if isinstance(event, (Parameter, Buffer)):
        return f"{type(event).__name__.lower()} {event.name}"
    if isinstance(event, Phase):
        return f"the beginning of the phase {event.name}"
    if isinstance(event, Label):
        return f"the label {event.category}"
    return "the end of a tensor" if isinstance(event, Free) else "the beginning of a step"


class _Merger:
    def __init__(self, first: Recorded, second: Recorded, tables: Tables) -> None:
        self._layouts = (first.layouts, second.layouts)
        self._tables = tables
        self._layout_pairs: dict[tuple[int, int], int] = {}

    def event(self, a: Event, b: Event) -> Event:
        if isinstance(a, Call):
            if not isinstance(b, Call):
                raise _Differs
            return self._call(a, b)
        if isinstance(a, Parameter) and isinstance(b, Parameter):
            if (a.storage, a.name, a.trainable) != (b.storage, b.name, b.trainable):
                raise _Differs
            return Parameter(a.storage, self._layout(a.layout, b.layout), a.name, a.trainable)
        if isinstance(a, Buffer) and isinstance(b, Buffer):
            if (a.storage, a.name) != (b.storage, b.name):
                raise _Differs
            return Buffer(a.storage, self._layout(a.layout, b.layout), a.name)
        if isinstance(a, PartBegin) and isinstance(b, PartBegin) and a.stage == b.stage:
            times, batches = _pair(a.times, b.times), _pair(a.batches, b.batches)
            # Of all data only where it is so in both runs.
            return PartBegin(a.stage, times, batches, a.seen, min(a.heaviest, b.heaviest))
        if a != b:
            raise _Differs
        return a

    def _call(self, a: Call, b: Call) -> Call:
        if a.op != b.op or len(a.results) != len(b.results) or len(a.made) != len(b.made):
            raise _Differs
        if a.kwargs.keys() != b.kwargs.keys():
            raise _Differs
        return Call(
            a.op,
            a.place,
            self._value(a.args, b.args),
            {key: self._value(value, b.kwargs[key]) for key, value in a.kwargs.items()},
            [self._tensor(x, y) for x, y in zip(a.results, b.results)],
            [_new_storage(x, y) for x, y in zip(a.made, b.made)],
        )

    def _value(self, a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return self._tensor(a, b)
        if isinstance(a, list):
            if not isinstance(b, list) or len(a) != len(b):
                raise _Differs
            return [self._value(x, y) for x, y in zip(a, b)]
        if type(a) is not type(b):
            raise _Differs
        if a == b or isinstance(a, float):
            return a  # no size depends on a float: a learning rate that a schedule has set
        if isinstance(a, (str, bool)):
            raise _Differs
        return Pair(a, b)

    def _tensor(self, a: Tensor, b: Any) -> Tensor:
        if not isinstance(b, Tensor) or a.storage != b.storage or a.flags != b.flags:
            raise _Differs
        return Tensor(a.storage, self._layout(a.layout, b.layout), a.flags)

    def _layout(self, a: int, b: int) -> int:
        index = self._layout_pairs.get((a, b))
        if index is None:
            merged = _merged_layout(self._layouts[0][a], self._layouts[1][b])
            index = self._layout_pairs[a, b] = self._tables.layout(merged)
        return index


def _new_storage(a: NewStorage, b: NewStorage) -> NewStorage:
    if a.storage != b.storage or a.result != b.result:
        raise _Differs
    return NewStorage(a.storage, _pair(a.size, b.size), a.result)


def _merged_layout(a: Layout, b: Layout) -> Layout:
    if a.dtype != b.dtype or len(a.sizes) != len(b.sizes):
        raise _Differs
    return Layout(a.dtype, _pairs(a.sizes, b.sizes), _pairs(a.strides, b.strides))


def _pairs(a: tuple[Number, ...], b: tuple[Number, ...]) -> tuple[Number, ...]:
    return tuple(_pair(x, y) for x, y in zip(a, b))


def _pair(a: Number, b: Number) -> Number:
    assert isinstance(a, int) and isinstance(b, int)  # of one run each
    return a if a == b else Pair(a, b)
