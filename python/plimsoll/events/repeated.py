"""A job of few layers as one of many: what a layer in the middle does is done again by each further
one.

A layer's events come together, in the forward after those of the layer before it, in the backward
before them. Where two layers in the middle do the same thing event by event, each storage of the
one has its counterpart in the other, and that is all that further layers need: they stand between
these two, with storages of their own.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..base.lists import GivenLists
from ..base.place import Place
from .event import (
    Buffer,
    Call,
    Event,
    Free,
    Label,
    NewStorage,
    Number,
    Parameter,
    PartBegin,
    Phase,
    StepBegin,
    Tensor,
    Varying,
    tensors_in,
)

#: Units that are captured: the first, two in the middle, the last.
_FIRST, _MIDDLE, _SECOND, _LAST = range(4)
#: A layer each, at least.
_ENDS = 2


class NotAlike(Exception):
    """The layers cannot be told by few of them."""


class Layers(NamedTuple):
    """A list of modules of a model: where it stands, and how many there are to be. The first is a
    unit of its own, the two in the middle have `period` each, and the last has what is left."""

    path: str
    captured: int
    wanted: int
    period: int = 1

    def unit(self, layer: int) -> int:
        return min((layer + self.period - 1) // self.period, _LAST)

    @staticmethod
    def fewest(wanted: int, period: int) -> int:
        """How many are captured to tell of so many."""
        return _ENDS + 2 * period + max(wanted - _ENDS, 0) % period


def copies_of(name: str, layers: Layers) -> int:
    """How many more there are of a tensor of the captured model."""
    found = re.match(rf"{re.escape(layers.path)}\.(\d+)\.", name)
    if not found or layers.unit(int(found.group(1))) != _MIDDLE:
        return 0
    return (layers.wanted - layers.captured) // layers.period


def in_all_layers(lists: GivenLists, layers: Sequence[Layers]) -> GivenLists:
    """As if each layer were given what one is."""

    def paths(found: frozenset[str]) -> frozenset[str]:
        for one in layers:
            layer = re.compile(rf"({re.escape(one.path)}\.)\d+(?=\.|$)")
            found = frozenset(
                layer.sub(rf"\g<1>{index}", path, count=1) if layer.match(path) else path
                for path in found
                for index in range(one.wanted)
            )
        return found

    return GivenLists(paths(lists.to), paths(lists.changed_by))


def repeated(events: list[Event], layers: Layers, layouts: list[Any]) -> list[Event]:
    """`layouts`: those of the file, which may grow."""
    return _Repeater(events, layers, layouts).run()


class _Repeater:
    def __init__(self, events: list[Event], layers: Layers, layouts: list[Any]) -> None:
        self._events = _frees_in_order(events)
        self._layers = layers
        self._layouts = layouts
        self._copies = (layers.wanted - layers.captured) // layers.period
        self._pattern = re.compile(rf"{re.escape(layers.path)}\.(\d+)(?=\.|$)")
        #: By storage, the unit that makes it.
        self._owner: dict[int, int] = {}
        #: Of what a call does for every layer at once, by its result: as if each layer did it.
        self._next: dict[int, int] = {}
        self._before: dict[int, int] = {}
        #: What both units in the middle use, which is let go once, by whichever comes last.
        self._shared: set[int] = set()
        self._fresh: dict[tuple[int, int], int] = {}
        self._last = 0
        #: By storage and layout, the layout of what has become longer.
        self._grown: dict[tuple[int, int], int] = {}

    def run(self) -> list[Event]:
        units = self._units()
        for event in self._events:
            for storage in _storages(event):
                self._last = max(self._last, storage)
        self._match(units)
        return self._held_as_long(list(self._emitted(units)), units)

    def _held_as_long(
        self, told: list[tuple[Event, int | None]], units: list[int | None]
    ) -> list[Event]:
        """What is made before the layers, or by the first one, may be held while all of them run:
        how many calls that takes is counted anew."""
        calls = [at for at, event in enumerate(self._events) if isinstance(event, Call)]
        ordinal = {at: number for number, at in enumerate(calls)}
        new: dict[int, int] = {}
        count = 0
        for event, origin in told:
            if isinstance(event, Call):
                if origin is not None:
                    new[origin] = count
                count += 1
        for event, origin in told:
            if not isinstance(event, Call) or origin is None or units[origin] not in (None, _FIRST):
                continue
            for index, one in enumerate(event.made):
                if one.held:
                    end = calls[min(ordinal[origin] + one.held, len(calls) - 1)]
                    event.made[index] = one._replace(held=new[end] - new[origin])
        return [event for event, _ in told]

    # Which unit an event belongs to.

    def _units(self) -> list[int | None]:
        units: list[int | None] = []
        current: int | None = None
        phase = ""
        named = self._named_next()
        for at, event in enumerate(self._events):
            if isinstance(event, (StepBegin, PartBegin)):
                current = None
            elif isinstance(event, Phase):
                if event.name in ("optimizer", "other", "inputs"):
                    current = None
                phase = event.name
            elif isinstance(event, (Parameter, Buffer)):
                current = self._named(event.name)
                if current is not None:
                    self._owner[event.storage] = current
            elif isinstance(event, Call):
                # While a model comes to the device nothing tells of a call but what it is for.
                current = self._of_call(event, current, phase) if phase else named[at]
                for new in event.made:
                    if current is not None:
                        self._owner[new.storage] = current
                if current is None:
                    self._own_results(event)
            units.append(self._of(event, current, phase))
        return units

    def _named_next(self) -> list[int | None]:
        """For each event the unit of the next tensor of the model."""
        found: list[int | None] = []
        unit: int | None = None
        for event in reversed(self._events):
            if isinstance(event, (Parameter, Buffer)):
                unit = self._named(event.name)
            found.append(unit)
        return found[::-1]

    def _of(self, event: Event, current: int | None, phase: str) -> int | None:
        if isinstance(event, Label):
            owners = {self._owner.get(storage) for storage in event.storages}
            return owners.pop() if len(owners) == 1 else None
        # What is let go outside of the layers: gradients, casts that autocast has kept.
        if isinstance(event, Free) and (current is None or phase not in ("forward", "backward")):
            return self._owner.get(event.storage)
        return current

    def _named(self, name: str | None) -> int | None:
        found = self._pattern.match(name or "")
        return self._layers.unit(int(found.group(1))) if found else None

    def _of_call(self, call: Call, current: int | None, phase: str) -> int | None:
        named = self._named(call.place.module)
        if named is not None:
            return named
        if phase in ("forward", "backward"):
            # In a backward it is not known of every call which module it is of.
            return None if call.place.module else current
        if any(isinstance(arg, list) and tensors_in(arg) for arg in call.args):
            return None
        given = [t.storage for t in tensors_in([*call.args, *call.kwargs.values()]) if t.storage]
        owners = {self._owner.get(storage) for storage in given}
        if not given:
            return current
        return owners.pop() if len(owners) == 1 else None

    def _own_results(self, call: Call) -> None:
        """Of a call over many tensors each result is of the layer whose tensor it is made of."""
        first = next((arg for arg in call.args if isinstance(arg, list) and tensors_in(arg)), None)
        if first is None or len(first) != len(call.results):
            return
        for new in call.made:
            owner = self._owner.get(first[new.result].storage)
            if owner is not None:
                self._owner[new.storage] = owner

    # Counterparts.

    def _match(self, units: list[int | None]) -> None:
        self._shared = self._used_by(_MIDDLE, units) & self._used_by(_SECOND, units)
        one = [e for e, unit in zip(self._events, units) if unit == _MIDDLE and self._is_own(e)]
        other = [e for e, unit in zip(self._events, units) if unit == _SECOND and self._is_own(e)]
        if not one or len(one) != len(other):
            raise NotAlike(f"{len(one)} events of one layer and {len(other)} of the next")
        for a, b in zip(one, other):
            if _shape(a) != _shape(b):
                raise NotAlike(f"{_shape(a)} and {_shape(b)}"[:300])
            for mine, its in zip(_storages(a), _storages(b)):
                self._pair(mine, its)
        for event, unit in zip(self._events, units):
            if unit is None:
                self._match_lists(event)

    def _used_by(self, wanted: int, units: list[int | None]) -> set[int]:
        """What is not the unit's own, and that of no layer in the middle."""
        return {
            storage
            for event, unit in zip(self._events, units)
            if unit == wanted and isinstance(event, Call)
            for storage in _storages(event)
            if self._owner.get(storage) not in (_MIDDLE, _SECOND)
        }

    def _is_own(self, event: Event) -> bool:
        return not (isinstance(event, Free) and event.storage in self._shared)

    def _match_lists(self, event: Event) -> None:
        """Of lists over all layers, the parts of the two."""
        for storages in _lists(event):
            one = [s for s in storages if self._owner.get(s) == _MIDDLE]
            other = [s for s in storages if self._owner.get(s) == _SECOND]
            if len(one) != len(other):
                raise NotAlike("a list has more of one layer than of the next")
            for mine, its in zip(one, other):
                self._pair(mine, its)

    def _pair(self, mine: int, its: int) -> None:
        if mine == its:
            return
        a, b = self._owner.get(mine), self._owner.get(its)
        if a is None or b is None or b != a + 1:
            raise NotAlike(f"storages of {a} and {b}")
        if self._next.setdefault(mine, its) != its or self._before.setdefault(its, mine) != mine:
            raise NotAlike("a storage has two counterparts")

    # The new events.

    def _emitted(self, units: list[int | None]) -> Iterator[tuple[Event, int | None]]:
        """With the place that each had, if it is not a copy's."""
        begin, last_unit = 0, None
        count = len(units)
        while begin < count:
            unit = units[begin]
            end = begin + 1
            while end < count and units[end] == unit:
                end += 1
            run = list(zip(self._events[begin:end], range(begin, end)))
            if unit is None:
                yield from ((self._of_all(event), at) for event, at in run)
            else:
                follows = next((u for u in units[end:] if u not in (None, unit)), None)
                yield from self._of_unit(run, unit, last_unit, follows)
                last_unit = unit
            begin = end

    def _of_unit(
        self, run: list[tuple[Event, int]], unit: int, before: int | None, after: int | None
    ) -> Iterator[tuple[Event, int | None]]:
        own = [(self._moved(event, unit, self._place(unit)), at) for event, at in run]
        if unit != _MIDDLE:
            yield from own
            return
        # By the neighbour that is nearer to the middle, since steps and phases begin anywhere.
        down = before == _SECOND and after != _SECOND
        copies = range(_SECOND, _SECOND + self._copies)
        if not down:
            yield from own
        for place in reversed(copies) if down else copies:
            for event, _ in run:
                if self._is_own(event):
                    yield self._moved(event, unit, place), None
        if down:
            yield from own

    def _place(self, unit: int) -> int:
        """Where a captured unit comes to stand."""
        return unit + self._copies if unit >= _SECOND else unit

    def _resolved(self, storage: int, unit: int, place: int) -> int:
        """What `storage`, as an event of `unit` names it, is for a unit at `place`."""
        owner = self._owner.get(storage)
        if owner is None:
            return storage
        target = place + owner - unit
        if target == self._place(owner):
            return storage
        base = self._base(storage, owner)
        if base is None:  # the same for every layer: what the first one made for all
            return storage
        if target < _SECOND:
            return base if target == _MIDDLE else self._before[base]
        if target >= _SECOND + self._copies:
            second = self._next[base]
            return second if target == self._place(_SECOND) else self._next[second]
        return self._new(target, base)

    def _new(self, place: int, base: int) -> int:
        key = (place, base)
        if key not in self._fresh:
            self._last += 1
            self._fresh[key] = self._last
        return self._fresh[key]

    def _base(self, storage: int, owner: int) -> int | None:
        """Its counterpart in the first unit of the middle."""
        while owner < _MIDDLE:
            if storage not in self._next:
                return None
            storage, owner = self._next[storage], owner + 1
        while owner > _MIDDLE:
            if storage not in self._before:
                return None
            storage, owner = self._before[storage], owner - 1
        return storage

    def _moved(self, event: Event, unit: int, place: int) -> Event:
        def new(storage: int) -> int:
            return self._resolved(storage, unit, place)

        shift = (place - unit) * self._layers.period
        if isinstance(event, Free):
            return Free(new(event.storage))
        if isinstance(event, Label):
            return Label(event.category, [new(storage) for storage in event.storages])
        if isinstance(event, Parameter):
            name = self._renamed(event.name, shift)
            return Parameter(new(event.storage), event.layout, name, event.trainable, event.piece)
        if isinstance(event, Buffer):
            return Buffer(new(event.storage), event.layout, self._renamed(event.name, shift))
        if not isinstance(event, Call):
            return event
        where, module, thread = event.place
        return Call(
            event.op,
            Place(where, self._renamed(module, shift), thread),
            _mapped(event.args, new),
            {key: _mapped(value, new) for key, value in event.kwargs.items()},
            _mapped(event.results, new),
            [NewStorage(new(one.storage), *one[1:]) for one in event.made],
        )

    def _renamed(self, name: Any, shift: int) -> Any:
        if not name or not shift:
            return name
        found = self._pattern.match(name)
        if not found:
            return name
        layer = int(found.group(1)) + shift
        return f"{self._layers.path}.{layer}{name[found.end() :]}"

    # Events over all layers at once.

    def _of_all(self, event: Event) -> Event:
        if isinstance(event, Label):
            return Label(event.category, self._longer(event.storages))
        if not isinstance(event, Call):
            return event
        if not _lists(event):
            args = [self._regrown(arg) for arg in event.args]
            return dataclasses.replace(event, args=args, made=list(event.made))
        order = self._order(event)
        made = {new.result: new for new in event.made}
        if len(event.results) == len(order.first):
            results = [self._at(event.results[i], place) for i, place in order.new]
            news = [
                made[i]._replace(storage=self._storage_at(made[i].storage, place), result=at)
                for at, (i, place) in enumerate(order.new)
                if i in made
            ]
        else:
            results, news = self._one_result(event, len(order.first), len(order.new))
        return dataclasses.replace(
            event,
            args=[self._longer_argument(arg, order) for arg in event.args],
            kwargs={key: self._longer_argument(arg, order) for key, arg in event.kwargs.items()},
            results=results,
            made=news,
        )

    def _regrown(self, arg: Any) -> Any:
        if isinstance(arg, Tensor) and (arg.storage, arg.layout) in self._grown:
            return arg._replace(layout=self._grown[arg.storage, arg.layout])
        return arg

    def _one_result(
        self, call: Call, before: int, now: int
    ) -> tuple[list[Tensor], list[NewStorage]]:
        """Numbers of all tensors, one beside the other, become one tensor."""
        if before == now or call.op not in ("aten.stack.default", "aten.cat.default"):
            return call.results, call.made
        if len(call.results) != 1 or len(call.made) > 1:
            raise NotAlike(call.op)
        result = call.results[0]
        dtype, sizes, strides = self._layouts[result.layout]
        if sizes != [before]:
            raise NotAlike(f"{call.op} of what layers give back")
        self._layouts.append([dtype, [now], strides])
        self._grown[result.storage, result.layout] = len(self._layouts) - 1
        grown = [m._replace(size=_times(m.size, now, before)) for m in call.made]
        return [Tensor(result.storage, len(self._layouts) - 1, result.flags)], grown

    def _order(self, call: Call) -> _Order:
        first = next(arg for arg in [*call.args, *call.kwargs.values()] if _is_list(arg))
        return _Order(first, self._places([t.storage for t in first]))

    def _places(self, storages: list[int]) -> list[tuple[int, int | None]]:
        """For each element of the longer list, which it is like, and of which layer."""
        found: list[tuple[int, int | None]] = []
        index = 0
        while index < len(storages):
            owner = self._owner.get(storages[index])
            end = index + 1
            while end < len(storages) and self._owner.get(storages[end]) == owner:
                end += 1
            own = None if owner is None else self._place(owner)
            found += [(i, own) for i in range(index, end)]
            if owner == _MIDDLE:
                for place in range(_SECOND, _SECOND + self._copies):
                    found += [(i, place) for i in range(index, end)]
            index = end
        return found

    def _storage_at(self, storage: int, place: int | None) -> int:
        owner = self._owner.get(storage)
        if owner is None or place is None:
            return storage
        return self._resolved(storage, owner, place)

    def _at(self, tensor: Tensor, place: int | None) -> Tensor:
        return tensor._replace(storage=self._storage_at(tensor.storage, place))

    def _longer(self, storages: list[int]) -> list[int]:
        return [self._storage_at(storages[i], place) for i, place in self._places(storages)]

    def _longer_argument(self, arg: Any, order: _Order) -> Any:
        if _is_list(arg):
            return [self._at(arg[i], place) for i, place in self._places([t.storage for t in arg])]
        # A number for each of the tensors.
        if isinstance(arg, list) and len(arg) == len(order.first):
            return [arg[i] for i, _ in order.new]
        return arg


def _times(size: Number, now: int, before: int) -> Number:
    if isinstance(size, Varying):
        return Varying(one * now // before for one in size)
    return size * now // before


class _Order(NamedTuple):
    first: list[Tensor]
    new: list[tuple[int, int | None]]


def _is_list(arg: Any) -> bool:
    return isinstance(arg, list) and bool(arg) and all(isinstance(one, Tensor) for one in arg)


def _lists(event: Event) -> list[list[int]]:
    if isinstance(event, Label):
        return [event.storages]
    if not isinstance(event, Call):
        return []
    lists = [
        [t.storage for t in arg] for arg in [*event.args, *event.kwargs.values()] if _is_list(arg)
    ]
    if lists and len(event.results) == len(lists[0]):
        lists.append([t.storage for t in event.results])
    return lists


def _frees_in_order(events: list[Event]) -> list[Event]:
    """What is let go at one instant, in the order in which it was made. Autocast lets go of what it
    keeps in an order of addresses, which is another one in each layer; the memory is the same."""

    def when_made(event: Event) -> int:
        return event.storage if isinstance(event, Free) else 0  # others stay where they are

    runs = itertools.groupby(events, lambda event: isinstance(event, Free))
    return [event for _, run in runs for event in sorted(run, key=when_made)]


def _storages(event: Event) -> list[int]:
    """All that an event names, in order."""
    if isinstance(event, (Free, Parameter, Buffer)):
        return [event.storage]
    if isinstance(event, Label):
        return event.storages
    if not isinstance(event, Call):
        return []
    tensors = tensors_in([*event.args, *event.kwargs.values(), event.results])
    return [*(t.storage for t in tensors), *(new.storage for new in event.made)]


def _shape(event: Event) -> Any:
    """An event without its storages and its layer."""
    if isinstance(event, (Parameter, Buffer)):
        return type(event).__name__, event.layout
    if isinstance(event, (Free, StepBegin)):
        return type(event).__name__
    if isinstance(event, Label):
        return event.category, len(event.storages)
    if not isinstance(event, Call):
        return event
    kwargs = {key: _mapped(value, lambda _: 0) for key, value in event.kwargs.items()}
    return (
        event.op,
        event.place.where,
        event.place.thread,
        _mapped(event.args, lambda _: 0),
        kwargs,
        _mapped(event.results, lambda _: 0),
        [(new.size, new.result) for new in event.made],
    )


def _mapped(value: Any, new: Any) -> Any:
    if isinstance(value, Tensor):
        return Tensor(new(value.storage), value.layout, value.flags) if value.storage else value
    if isinstance(value, list):
        return [_mapped(element, new) for element in value]
    return value
