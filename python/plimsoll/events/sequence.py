"""Steps of one run whose batches have sizes of their own, as the data decide them.

From the third on all steps do the same with other numbers: they are told as one, with its numbers
at each of them. What the allocator is left with depends on the order of their sizes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ..base.pieces import Pieces
from .event import (
    Call,
    Event,
    Free,
    Label,
    PartBegin,
    Recorded,
    StepBegin,
    Tensor,
)
from .inputs import Shape, shapes_by_step
from .merge import merged_alike
from .pieces_of_run import numbered_anew
from .points import BATCH, SCHEMA_OF_MORE
from .step_file import Tables

#: The first step makes the optimizer's state, and the second finds it.
FIRST = 2


class Steps(NamedTuple):
    """A run, taken apart."""

    #: Until the first step, with the first two.
    head: list[Event]
    #: From the third on, with the names of its storages.
    steps: list[list[Event]]
    #: What follows them, likewise.
    later: list[Event]
    #: By step, all of them.
    shapes: list[list[Shape]]


class Sequence(NamedTuple):
    events: list[Event]
    dimensions: list[str]
    #: By point.
    points: list[list[int]]
    #: From the third step on: the point, or the extent of a step that does otherwise.
    steps: list[Any]


def sequence_of(run: Recorded, tables: Tables) -> Sequence | None:
    """None where there are too few steps, or none that are alike."""
    parted = _taken_apart(run)
    if parted is None:
        return None
    kinds = [_kind(step) for step in parted.steps]
    common = Counter(kinds).most_common(1)[0][0]
    alike = [index for index, kind in enumerate(kinds) if kind == common]
    dimensions, extents = _extents(parted.shapes[FIRST:])
    once = merged_alike([parted.head], [run.layouts], tables)
    steps = merged_alike([parted.steps[i] for i in alike], [run.layouts] * len(alike), tables)
    later = merged_alike([parted.later], [run.layouts], tables)
    number = {index: point for point, index in enumerate(alike)}
    order = [number.get(i, extents[i]) for i in range(len(parted.steps))]
    # Most numbers were of steps that are not told; temporaries of the model's have the last ones.
    events = numbered_anew([*once, *steps, *later])
    return Sequence(events, dimensions, [extents[index] for index in alike], order)


def _taken_apart(run: Recorded) -> Steps | None:
    begins = [i for i, event in enumerate(run.events) if isinstance(event, StepBegin)]
    end = next((i for i, e in enumerate(run.events) if isinstance(e, PartBegin)), len(run.events))
    steps = [run.events[a:b] for a, b in zip(begins, [*begins[1:], end])]
    if len(steps) <= FIRST:
        return None
    made = [_made_in(step) for step in steps]
    if any(len(storages) != len(made[FIRST]) for storages in made[FIRST - 1 :]):
        return _alike_alone(run, steps, made, begins, end)
    named = [_named(steps, made, index) for index in range(FIRST, len(steps))]
    names = _names(made, len(steps) - 1)
    later = [_renamed(event, names) for event in run.events[end:]]
    return Steps(run.events[: begins[FIRST]], named, later, shapes_by_step(run))


def _alike_alone(
    run: Recorded,
    steps: list[list[Event]],
    made: list[list[int]],
    begins: list[int],
    end: int,
) -> Steps | None:
    """Some steps make more than others: those keep names of their own, and are of another kind."""
    common = Counter(len(storages) for storages in made[FIRST:]).most_common(1)[0][0]
    if len(made[FIRST - 1]) != common or len(made[FIRST]) != common:
        return None
    named, names = [], {}
    for index in range(FIRST, len(steps)):
        if len(made[index]) == len(made[index - 1]) == common:
            names = _names(made, index)
            named.append(_named(steps, made, index))
        else:
            named.append(list(steps[index]))
    later = [] if len(made[-1]) != common else [_renamed(e, names) for e in run.events[end:]]
    return Steps(run.events[: begins[FIRST]], named, later, shapes_by_step(run))


def _made_in(step: list[Event]) -> list[int]:
    return [new.storage for event in step if isinstance(event, Call) for new in event.made]


def _named(steps: list[list[Event]], made: list[list[int]], index: int) -> list[Event]:
    """What is kept for two steps is let go as the third step does it, and is named as there. What
    is kept for longer, the third has none of: it stays, and what keeps it is told (`kept_by`)."""
    names = _names(made, index)
    kept = {storage for before in made[: index - 1] for storage in before}
    gone = _freed_of(steps[index], made[index - FIRST])
    told = _freed_of(steps[FIRST], made[0])
    if len(gone) == len(told):
        names.update(zip(gone, told))
    return [
        _renamed(event, names)
        for event in steps[index]
        if not (isinstance(event, Free) and event.storage in kept and event.storage not in names)
    ]


def _freed_of(step: list[Event], made: list[int]) -> list[int]:
    """What it lets go of what another has made, in its order."""
    storages = set(made)
    return [e.storage for e in step if isinstance(e, Free) and e.storage in storages]


def _names(made: list[list[int]], index: int) -> dict[int, int]:
    """What this step and the one before it make is named as in the third and the second."""
    before = zip(made[index - 1], made[FIRST - 1])
    return {**dict(before), **dict(zip(made[index], made[FIRST]))}


def _renamed(event: Event, names: dict[int, int]) -> Event:
    if isinstance(event, Free):
        return Free(names.get(event.storage, event.storage))
    if isinstance(event, Label):
        return Label(event.category, [names.get(number, number) for number in event.storages])
    if isinstance(event, Call):
        return Call(
            event.op,
            event.place,
            _value(event.args, names),
            {key: _value(value, names) for key, value in event.kwargs.items()},
            [_tensor(result, names) for result in event.results],
            [new._replace(storage=names.get(new.storage, new.storage)) for new in event.made],
        )
    return event


def _value(value: Any, names: dict[int, int]) -> Any:
    if isinstance(value, Tensor):
        return _tensor(value, names)
    if isinstance(value, list) and not isinstance(value, Pieces):
        return [_value(element, names) for element in value]
    return value


def _tensor(tensor: Tensor, names: dict[int, int]) -> Tensor:
    return tensor._replace(storage=names.get(tensor.storage, tensor.storage))


def _kind(step: list[Event]) -> int:
    """The same for steps that do the same, whatever the sizes."""
    return hash(tuple(_key(event) for event in step))


def _key(event: Event) -> tuple[Any, ...]:
    if isinstance(event, Call):
        tensors = tuple(result.storage for result in event.results)
        return event.op, _keys(event.args), tensors, tuple(new.storage for new in event.made)
    if isinstance(event, Free):
        return ("free", event.storage)
    if isinstance(event, Label):
        return (event.category, *event.storages)
    return (repr(event),)


def _keys(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.storage, value.flags
    if isinstance(value, Pieces):
        return "pieces"
    if isinstance(value, list):
        return tuple(_keys(element) for element in value)
    return value if isinstance(value, (str, bool)) else type(value).__name__


def _extents(shapes: list[list[Shape]]) -> tuple[list[str], list[list[int]]]:
    """The sizes of what the steps are given that are not always the same, the batch first."""
    first = next((step[0][0] for step in shapes if step and step[0]), 1)
    batches = [step[0][0] if step and step[0] else first for step in shapes]
    usual = Counter(tuple(map(len, step)) for step in shapes).most_common(1)[0][0]
    columns: dict[tuple[int, ...], str] = {}
    places = [(i, d) for i, rank in enumerate(usual) for d in range(rank)]
    for i, d in places:
        column = tuple(
            step[i][d] if i < len(step) and d < len(step[i]) else 1 for step in shapes
        )
        if len(set(column)) > 1 and column != tuple(batches):
            columns.setdefault(column, f"size {d + 1} of input {i + 1}")
    kept = list(columns)[: _MOST_DIMENSIONS - 1]
    names = ["length"] if len(kept) == 1 else [columns[column] for column in kept]
    if not kept:
        kept, names = [tuple(range(1, len(shapes) + 1))], ["step"]
    extents = [[max(1, batch), *(c[i] for c in kept)] for i, batch in enumerate(batches)]
    return [BATCH, *names], [[max(1, size) for size in extent] for extent in extents]


_MOST_DIMENSIONS = 4


def head_of(sequence: Sequence) -> dict[str, Any]:
    """Of the step file."""
    batch = sequence.points[0][0]
    return {
        "schema": SCHEMA_OF_MORE,
        "batches": [batch, batch + 1],
        "dimensions": sequence.dimensions,
        "points": sequence.points,
        "sequence": sequence.steps,
    }
