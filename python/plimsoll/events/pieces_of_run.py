"""A run that trains nothing, in pieces: a forward, a batch, a token after another.

Of a loop whose rounds do the same, with numbers that grow evenly, three are told, with how many
there are: what reads the file goes on from those. So a thousand tokens cost what a few do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, NamedTuple

from .event import (
    Buffer,
    Call,
    Event,
    Free,
    Label,
    Layout,
    Parameter,
    PartBegin,
    Phase,
    Tensor,
    tensors_in,
)

PROMPT, GENERATION, EVALUATION = "prompt", "generation", "evaluation"
#: What is computed with no model.
OTHER = "other"
CACHE = "cache"
#: Pieces that a round of a loop may have: a model that is asked twice for each batch.
_LONGEST_ROUND = 4
#: Rounds that are told: what one lets go was made two before it, at most.
_TOLD = 3
#: As many say that the next ones will be like them.
FEWEST = _TOLD + 1


class Mark(NamedTuple):
    """Where a piece begins: before the event. `more`: pieces like it that did not run."""

    event: int
    more: int = 0


class NotEven(Exception):
    """A loop was cut short whose rounds are not alike, or do not grow evenly."""


class _Piece(NamedTuple):
    events: list[Event]
    #: What it makes, in its order.
    made: list[int]
    more: int


def in_pieces(
    events: list[Event], marks: list[Mark], layouts: list[Layout], held: set[int]
) -> list[Event]:
    """With a part for each piece, or for all rounds of a loop. `held`: storages of the models."""
    cuts = [0, *(mark.event for mark in marks), len(events)]
    mores = [0, *(mark.more for mark in marks)]
    cut = [events[a:b] for a, b in zip(cuts, cuts[1:])]
    caches = _caches(cut, layouts, held)
    sites = {event.site for piece in cut for event in piece if _makes(event, caches)}
    pieces = []
    for piece, more in zip(cut, mores):
        told = [one for event in piece for one in _labelled(event, sites, layouts)]
        if told:
            pieces.append(_Piece(told, _made_in(told), more))
    return _Teller(pieces, layouts, caches).told()


def numbered_anew(events: list[Event]) -> list[Event]:
    """Storages by the order in which they are told: most were of rounds that are not."""
    names: dict[int, int] = {0: 0}

    def name(number: int) -> int:
        return names.setdefault(number, len(names))

    told: list[Event] = []
    for event in events:
        if isinstance(event, (Parameter, Buffer)):
            event = replace(event, storage=name(event.storage))
        elif isinstance(event, Free):
            event = Free(name(event.storage))
        elif isinstance(event, Label):
            event = Label(event.category, [name(number) for number in event.storages])
        elif isinstance(event, Call):
            made = [new._replace(storage=name(new.storage)) for new in event.made]
            named = {key: _with_names(value, name) for key, value in event.kwargs.items()}
            args, results = _with_names(event.args, name), _with_names(event.results, name)
            event = Call(event.op, event.place, args, named, results, made)
        told.append(event)
    return told


def _with_names(value: Any, name: Callable[[int], int]) -> Any:
    if isinstance(value, Tensor):
        return value._replace(storage=name(value.storage))
    # Not of what is a list of numbers by another name.
    return [_with_names(one, name) for one in value] if type(value) is list else value


def _made_in(events: list[Event]) -> list[int]:
    return [new.storage for event in events if isinstance(event, Call) for new in event.made]


def _joined(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    events = [event for piece in pieces for event in piece.events]
    return _Piece(events, _made_in(events), pieces[-1].more)


# The cache of keys and values.


def _caches(pieces: list[list[Event]], layouts: list[Layout], held: set[int]) -> set[int]:
    """What a module computes or writes in one forward and reads in another, numbers that count
    tokens aside."""
    last: dict[int, int] = {}  # by storage: the piece in which a module had to do with it last
    caches: set[int] = set()
    for index, piece in enumerate(pieces):
        for event in piece:
            if not isinstance(event, Call) or event.place.module is None:
                continue
            for number in _read(event, layouts) - held:
                if last.get(number, index) < index:
                    caches.add(number)
                last[number] = index
            for new in event.made:
                if _is_real(layouts[event.results[new.result].layout]):
                    last[new.storage] = index
    return caches


def _read(call: Call, layouts: list[Layout]) -> set[int]:
    given = tensors_in([call.args, list(call.kwargs.values())])
    return {tensor.storage for tensor in given if _is_real(layouts[tensor.layout])}


def _is_real(layout: Layout) -> bool:
    return "float" in layout.dtype


def _makes(event: Event, caches: set[int]) -> bool:
    return isinstance(event, Call) and any(new.storage in caches for new in event.made)


def _labelled(event: Event, sites: set[Any], layouts: list[Layout]) -> list[Event]:
    """What is made where caches are is one, also where nothing reads it any more."""
    if isinstance(event, Phase):
        return []
    if isinstance(event, Call) and event.made and event.site in sites:
        real = [n for n in event.made if _is_real(layouts[event.results[n.result].layout])]
        return [event, Label(CACHE, [new.storage for new in real])] if real else [event]
    return [event]


# Loops.


class _Description(NamedTuple):
    #: What it does.
    structure: list[Any]
    #: The storages that it has to do with, by where they are from.
    names: list[Any]
    numbers: list[int]


class _Teller:
    def __init__(self, pieces: list[_Piece], layouts: list[Layout], caches: set[int]) -> None:
        self._pieces = pieces
        self._layouts = layouts
        self._caches = caches
        self._shapes: dict[int, tuple[Any, tuple[int, ...]]] = {}
        #: What storages of rounds that are not told are called by what follows.
        self._names: dict[int, int] = {}
        #: Those of which the end is that of a later one.
        self._dropped: set[int] = set()
        #: Of what was told.
        self._made: set[int] = set()

    def told(self) -> list[Event]:
        events: list[Event] = []
        begin = 0
        while begin < len(self._pieces):
            size, count = self._loop_at(begin)
            pieces = self._pieces[begin : begin + size * count]
            rounds = [_joined(pieces[i : i + size]) for i in range(0, len(pieces), size)]
            more = rounds[-1].more
            if count == 1 and more:
                raise NotEven
            for one in rounds[: _TOLD - 1]:
                events += self._part(one)
            if count > 1:
                events += self._part(rounds[_TOLD - 1], count - _TOLD + 1 + more)
                self._stand_in(rounds)
            begin += size * count
        return events

    def _loop_at(self, begin: int) -> tuple[int, int]:
        """Pieces of a round, and rounds that are alike and grow evenly, from this one on."""
        for size in range(1, _LONGEST_ROUND + 1):
            count = self._rounds(begin, size)
            if count >= FEWEST:
                return size, count
        return 1, 1

    def _rounds(self, begin: int, size: int) -> int:
        told: list[_Description] = []
        rounds: list[_Piece] = []
        while begin + (len(rounds) + 1) * size <= len(self._pieces):
            end = begin + (len(rounds) + 1) * size
            one = _joined(self._pieces[end - size : end])
            count = len(rounds)
            found = self._described(one, [before.made for before in rounds[1 - _TOLD :]])
            if count and found.structure != told[0].structure:
                break
            if count > 1 and not _is_even(told, found, count):
                break
            if count >= _TOLD and found.names != told[-1].names:
                break
            if count < _TOLD:
                told.append(found)
            rounds.append(one)
            if one.more:  # what follows does not go on from here
                break
        return len(rounds)

    def _described(self, piece: _Piece, before: list[list[int]]) -> _Description:
        called: dict[int, Any] = {}
        for ago, made in enumerate([piece.made, *reversed(before)]):
            called.update({number: (ago, i) for i, number in enumerate(made)})
        found = _Description([], [], [])
        for event in piece.events:
            if isinstance(event, Call):
                found.structure.append((event.op, event.place))
                for value in (event.args, *event.kwargs.values(), event.results):
                    self._describe(value, called, found)
                for new in event.made:
                    if new.size != _bytes_of(self._layouts[event.results[new.result].layout]):
                        found.numbers.append(int(new.size))
            elif isinstance(event, Free):
                found.structure.append(Free)
                found.names.append(called.get(event.storage, event.storage))
        return found

    def _describe(self, value: Any, called: dict[int, Any], found: _Description) -> None:
        if isinstance(value, Tensor):
            shape = self._shapes.get(value.layout)
            if shape is None:
                shape = self._shapes[value.layout] = _shape(self._layouts[value.layout])
            found.structure.append((shape[0], value.flags))
            found.names.append(called.get(value.storage, value.storage))
            found.numbers.extend(shape[1])
        elif isinstance(value, list):
            found.structure.append(len(value))
            for one in value:
                self._describe(one, called, found)
        elif isinstance(value, int) and not isinstance(value, bool):
            found.numbers.append(value)
        else:
            same = isinstance(value, (str, bool, type(None)))
            found.structure.append(value if same else type(value))

    def _stand_in(self, rounds: list[_Piece]) -> None:
        """What follows calls the last rounds as those that are told. Of what the rounds keep, the
        older go with those of the second that is told."""
        for index, one in enumerate(rounds):
            told = max(_TOLD - len(rounds) + index, 0)
            self._names.update(zip(one.made, rounds[told].made))
            if index < len(rounds) - _TOLD:
                self._dropped.update(one.made)

    def _part(self, piece: _Piece, times: int = 1) -> list[Event]:
        stage = self._stage(piece)
        self._made.update(piece.made)
        told: list[Event] = [PartBegin(stage, times=times, grows=times > 1)]
        for event in piece.events:
            if not (isinstance(event, Free) and event.storage in self._dropped):
                told.append(self._renamed(event))
        return told

    def _stage(self, piece: _Piece) -> str:
        calls = [e for e in piece.events if isinstance(e, Call) and e.place.module is not None]
        if not calls:
            return OTHER
        read = set().union(*(_read(call, self._layouts) for call in calls)) & self._caches
        if read & self._made:
            return GENERATION
        return PROMPT if read or self._caches.intersection(piece.made) else EVALUATION

    def _renamed(self, event: Event) -> Event:
        if not self._names:
            return event
        if isinstance(event, Free):
            return Free(self._names.get(event.storage, event.storage))
        if isinstance(event, Label):
            return Label(event.category, [self._names.get(n, n) for n in event.storages])
        if isinstance(event, Call):

            def name(number: int) -> int:
                return self._names.get(number, number)

            named = {key: _with_names(value, name) for key, value in event.kwargs.items()}
            args, results = _with_names(event.args, name), _with_names(event.results, name)
            return Call(event.op, event.place, args, named, results, event.made)
        return event


def _is_even(told: list[_Description], found: _Description, count: int) -> bool:
    """Whether each number goes on as it went from the first round to the second."""
    first, second = told[0].numbers, told[1].numbers
    if not len(first) == len(second) == len(found.numbers):
        return False
    return all(n == a + count * (b - a) for a, b, n in zip(first, second, found.numbers))


def _shape(layout: Layout) -> tuple[Any, tuple[int, ...]]:
    """What is the same in all rounds, and the numbers. Strides of what has no gaps follow from its
    sizes."""
    order = _dense_order(layout)
    sizes = tuple(int(size) for size in layout.sizes)
    if order is not None:
        return (layout.dtype, order), sizes
    return (layout.dtype, len(sizes)), sizes + tuple(int(stride) for stride in layout.strides)


def _dense_order(layout: Layout) -> tuple[int, ...] | None:
    sizes, strides = layout.sizes, layout.strides
    order = sorted(range(len(sizes)), key=lambda d: (sizes[d] == 1, -strides[d]))
    elements = 1
    for d in reversed(order):
        if sizes[d] > 1 and strides[d] != elements:
            return None
        elements *= max(sizes[d], 1)
    return tuple(order)


def _bytes_of(layout: Layout) -> int:
    size = _BYTES.get(layout.dtype, 0)
    for n in layout.sizes:
        size *= int(n)
    return size


_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
