"""Runs of one job, at several batch sizes or lengths, as one list of events.

What is equal stands once, a number that differs with its value in each.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from ..base.errors import CaptureError
from ..base.notes import Note
from ..base.pieces import Name, Pieces
from .aligned import NotAligned, aligned
from .event import (
    KERNEL,
    Buffer,
    Call,
    Event,
    Free,
    Label,
    Layout,
    NewStorage,
    Parameter,
    PartBegin,
    Phase,
    Recorded,
    StepBegin,
    Tensor,
    varying,
)
from .per_sample import NoCounterpart, lengthened
from .points import Points
from .step_file import Tables


class _Differs(Exception):
    """The runs part here: the first and this one."""

    def __init__(self, run: int = 1) -> None:
        super().__init__()
        self.run = run


def merged(
    runs: Sequence[Recorded], tables: Tables, points: Points, note: Note
) -> list[Event]:
    """One list, with the layouts of `tables`, or an error that names where the runs part, unless it
    is for some calls that come once for each sample. Of what follows the steps, as much as is the
    same in all."""
    parts = [_parts(run) for run in runs]
    steps, later = [run[0] for run in parts], [run[1:] for run in parts]
    merger = _Merger([run.layouts for run in runs], tables)
    try:
        events = _side_by_side(merger, steps, points)
    except CaptureError as parted:
        if is_compiled(steps[0]):
            return _as_compiled(runs, parts, tables, points, note, parted)
        try:
            events = _once_for_each_sample(runs, steps, tables, points)
        except (NoCounterpart, CaptureError):
            raise parted from None
        few, many = points.batches
        note(
            f"the step calls some operators once for each sample; those that batch {many} "
            f"has more than batch {few} stand for those of all further samples"
        )
        # Storages have other numbers now.
        if later[0]:
            note(_not_counted(later[0][0]))
        return events
    trains = any(isinstance(event, StepBegin) for event in steps[0])
    if not trains and len({len(run) for run in later}) > 1:
        other = next(i for i, run in enumerate(later) if len(run) != len(later[0]))
        raise CaptureError(
            f"the script does not do the same at {points.described(0)} and at "
            f"{points.described(other)}: it goes through {len(later[0])} pieces in the one and "
            f"{len(later[other])} in the other",
            hint="Choose sizes at which it does (--batches, --lengths)",
        )
    for index, part in enumerate(zip(*later), 1):
        try:
            events += _side_by_side(merger, part, points)
        except CaptureError:
            if not trains:
                raise
            # A long one is followed for so long, and not as far in each run.
            alike = _as_far_as_alike(merger, part)
            if all(len(run) == index for run in later) and _is_most(alike, part):
                note(
                    f"the {_stage_of(part[0])} that follows the steps is counted as far as it was "
                    f"followed at {points.described(0)} and at {points.described(1)} ("
                    f"{len(alike):,} events)"
                )
                events += alike
                break
            note(_not_counted(part[0]) + f", since it is not the same at {points.described(0)} and "
                 f"at {points.described(1)}")
            break
    return events


NOTHING_COMPILED = "the compiler wrote no code without a GPU: the figures are those of eager mode"


def is_compiled(events: list[Event]) -> bool:
    """Whether a compiler wrote some of it."""
    return any(isinstance(event, Call) and event.op == KERNEL for event in events)


def _as_compiled(
    runs: Sequence[Recorded],
    parts: list[list[list[Event]]],
    tables: Tables,
    points: Points,
    note: Note,
    parted: CaptureError,
) -> list[Event]:
    """Steps, and as many of the parts that follow them as are of the same stages."""
    if len(runs) != 2:
        raise parted
    stages = [[b.stage for b, *_ in run[1:] if isinstance(b, PartBegin)] for run in parts]
    alike = 0
    while alike < min(map(len, stages)) and stages[0][alike] == stages[1][alike]:
        alike += 1
    events = [[event for part in run[: 1 + alike] for event in part] for run in parts]
    try:
        both = aligned(*(Recorded(one, run.layouts) for one, run in zip(events, runs)))
    except NotAligned:
        raise parted from None
    merger = _Merger([both.first.layouts, both.second.layouts], tables)
    merged_events = _side_by_side(merger, [both.first.events, both.second.events], points)
    note(
        f"the compiler writes other code at {points.described(0)} than at {points.described(1)} "
        f"({both.alone} of {both.calls} calls are in one alone): what it takes is known there, and "
        "is likely at others"
    )
    return merged_events


def merged_steps(runs: Sequence[Recorded], tables: Tables, points: Points) -> list[Event]:
    """The steps alone; a CaptureError where they part."""
    merger = _Merger([run.layouts for run in runs], tables)
    return _side_by_side(merger, [_parts(run)[0] for run in runs], points)


def merged_alike(
    runs: Sequence[list[Event]], layouts: list[list[Layout]], tables: Tables
) -> list[Event]:
    """Of lists that are known to be alike."""
    merger = _Merger(layouts, tables)
    return [merger.event(alike) for alike in zip(*runs)]


def _once_for_each_sample(
    runs: Sequence[Recorded], steps: list[list[Event]], tables: Tables, points: Points
) -> list[Event]:
    if len(runs) != 2:
        raise NoCounterpart
    longer = lengthened(
        Recorded(steps[0], runs[0].layouts), Recorded(steps[1], runs[1].layouts)
    )
    merger = _Merger([longer.layouts, runs[1].layouts], tables)
    return _side_by_side(merger, [longer.events, steps[1]], points)


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
    return f"what the script does from its {_stage_of(part)} on, after the steps, is not counted"


def _stage_of(part: list[Event]) -> str:
    begin = part[0]
    assert isinstance(begin, PartBegin)
    return begin.stage


def _side_by_side(
    merger: _Merger, runs: Sequence[list[Event]], points: Points
) -> list[Event]:
    events: list[Event] = []
    _agree_on_frees(runs)
    for index, alike in enumerate(zip(*runs)):
        try:
            events.append(merger.event(alike))
        except _Differs as differs:
            raise _parted(index, alike[0], alike[differs.run], points, differs.run) from None
    if len({len(run) for run in runs}) > 1:
        index = len(events)
        other = next(i for i, run in enumerate(runs) if len(run) != len(runs[0]))
        a, b = (run[index] if len(run) > index else None for run in (runs[0], runs[other]))
        raise _parted(index, a, b, points, other)
    return events


def _as_far_as_alike(merger: _Merger, runs: Sequence[list[Event]]) -> list[Event]:
    events: list[Event] = []
    with contextlib.suppress(_Differs):
        for alike in zip(*runs):
            events.append(merger.event(alike))
    return events


def _is_most(alike: list[Event], runs: Sequence[list[Event]]) -> bool:
    """At the end of a loop, or of the script, some more goes in the one that comes to it."""
    return len(alike) > 0.9 * min(map(len, runs))


def _agree_on_frees(runs: Sequence[list[Event]]) -> None:
    """Frees with nothing between them may come in another order in each run, as when autocast
    drops its copies of the weights, kept by address. Then the order is that of their making."""
    index, length = 0, min(map(len, runs))
    while index < length:
        end = index
        while end < length and all(isinstance(run[end], Free) for run in runs):
            end += 1
        _agree_between(runs, index, end)
        index = end + 1


def _agree_between(runs: Sequence[list[Event]], begin: int, end: int) -> None:
    """Only where they differ: what a function lets go of at its end has its order."""

    def same(index: int) -> bool:
        return all(run[index] == runs[0][index] for run in runs)

    while begin < end and same(begin):
        begin += 1
    while begin < end and same(end - 1):
        end -= 1
    for run in runs:
        run[begin:end] = sorted(run[begin:end], key=_storage_of)


def _storage_of(free: Event) -> int:
    assert isinstance(free, Free)
    return free.storage


def _parted(
    index: int, a: Event | None, b: Event | None, points: Points, other: int
) -> CaptureError:
    lines = [event.place.where for event in (a, b) if isinstance(event, Call)]
    return CaptureError(
        f"the step does not do the same at {points.described(0)} and at "
        f"{points.described(other)}: "
        f"event {index} is {_described(a)} in the one and {_described(b)} in the other",
        where=next((line for line in lines if line), None),
        hint="Choose two batch sizes at which it does (batches=, or --batches); "
        "a batch of 1 is often a case of its own"
        if points.inline
        else "Choose sizes at which it does (batches= and lengths=, or --batches and --lengths)",
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
    """Of events that stand at the same place in all runs."""

    def __init__(self, layouts: list[list[Layout]], tables: Tables) -> None:
        self._layouts = layouts
        self._tables = tables
        self._merged: dict[tuple[int, ...], int] = {}

    def event(self, alike: Sequence[Any]) -> Event:
        first: Event = alike[0]
        kind = type(first)
        for run, other in enumerate(alike):
            if type(other) is not kind:
                raise _Differs(run)
        if isinstance(first, Call):
            return self._call(alike)
        if isinstance(first, Parameter):
            _all_equal([(p.storage, p.name, p.trainable, p.piece) for p in alike])
            layout = self._layout([p.layout for p in alike])
            return Parameter(first.storage, layout, first.name, first.trainable, first.piece)
        if isinstance(first, Buffer):
            _all_equal([(b.storage, b.name) for b in alike])
            return Buffer(first.storage, self._layout([b.layout for b in alike]), first.name)
        if isinstance(first, PartBegin):
            _all_equal([(p.stage, p.grows) for p in alike])
            times, batches = varying([p.times for p in alike]), varying([p.batches for p in alike])
            # Of all data only where it is so in all runs.
            heaviest = min(p.heaviest for p in alike)
            return PartBegin(first.stage, times, batches, first.seen, heaviest, first.grows)
        _all_equal(alike)
        return first

    def _call(self, calls: Sequence[Call]) -> Call:
        first = calls[0]
        _all_equal([(c.op, len(c.results), len(c.made), c.kwargs.keys()) for c in calls])
        return Call(
            first.op,
            first.place,
            self._value([c.args for c in calls]),
            {key: self._value([c.kwargs[key] for c in calls]) for key in first.kwargs},
            [self._tensor(alike) for alike in zip(*(c.results for c in calls))],
            [_new_storage(alike) for alike in zip(*(c.made for c in calls))],
        )

    def _value(self, alike: Sequence[Any]) -> Any:
        first = alike[0]
        _all_equal([type(value) for value in alike])
        if isinstance(first, Tensor):
            return self._tensor(alike)
        if isinstance(first, Pieces):
            return [varying(numbers) for numbers in itertools.zip_longest(*alike, fillvalue=0)]
        if isinstance(first, list):
            _all_equal([len(value) for value in alike])
            return [self._value(elements) for elements in zip(*alike)]
        if isinstance(first, (float, Name)):
            return first  # no size depends on a float: a learning rate that a schedule has set
        if isinstance(first, int) and not isinstance(first, bool):
            return varying(alike)
        _all_equal(alike)
        return first

    def _tensor(self, alike: Sequence[Tensor]) -> Tensor:
        first = alike[0]
        _all_equal([(t.storage, t.flags) for t in alike])
        return Tensor(first.storage, self._layout([t.layout for t in alike]), first.flags)

    def _layout(self, indices: Sequence[int]) -> int:
        key = tuple(indices)
        index = self._merged.get(key)
        if index is None:
            merged = _merged_layout([run[i] for run, i in zip(self._layouts, key)])
            index = self._merged[key] = self._tables.layout(merged)
        return index


def _all_equal(alike: Sequence[Any]) -> None:
    first = alike[0]
    for run, other in enumerate(alike):
        if other != first:
            raise _Differs(run)


def _new_storage(alike: Sequence[NewStorage]) -> NewStorage:
    _all_equal([(new.storage, new.result) for new in alike])
    first = alike[0]
    held = max(new.held for new in alike)
    return NewStorage(first.storage, varying([new.size for new in alike]), first.result, held)


def _merged_layout(alike: Sequence[Layout]) -> Layout:
    _all_equal([(layout.dtype, len(layout.sizes)) for layout in alike])
    sizes = (varying(at) for at in zip(*(layout.sizes for layout in alike)))
    strides = (varying(at) for at in zip(*(layout.strides for layout in alike)))
    return Layout(alike[0].dtype, tuple(sizes), tuple(strides))
