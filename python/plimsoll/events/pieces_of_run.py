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
    Number,
    Parameter,
    PartBegin,
    Phase,
    Tensor,
    tensors_in,
)

PROMPT, GENERATION, EVALUATION = "prompt", "generation", "evaluation"
#: What is computed with no model.
OTHER = "other"
CACHE, INPUT = "cache", "input"
#: Pieces that a round of a loop may have: a model that is asked twice for each batch.
_LONGEST_ROUND = 4
#: Rounds that are told: what one lets go was made two before it, at most.
_TOLD = 3
#: As many say that the next ones will be like them.
FEWEST = _TOLD + 1


class Mark(NamedTuple):
    """Where a piece begins: before the event. `more`: pieces like it that did not run. `outputs`:
    its forward was left out, and what it gives back stands for these storages of the last one that
    ran."""

    event: int
    more: int = 0
    outputs: Any = None


class NotEven(Exception):
    """A loop was cut short whose rounds are not alike, or do not grow evenly."""


class _Piece(NamedTuple):
    events: list[Event]
    #: What it makes, in its order.
    made: list[int]
    more: int
    outputs: Any = None


def in_pieces(
    events: list[Event],
    marks: list[Mark],
    layouts: list[Layout],
    held: set[int],
    given: frozenset[int] = frozenset(),
) -> list[Event]:
    """With a part for each piece, or for all rounds of a loop. `held`: storages of the models;
    `given`: those that come from the host."""
    cuts = [0, *(mark.event for mark in marks), len(events)]
    begins = [Mark(0), *marks]
    cut = [events[a:b] for a, b in zip(cuts, cuts[1:])]
    caches = _caches(cut, layouts, held)
    calls = [event for piece in cut for event in piece if isinstance(event, Call)]
    sites = {call.site for call in calls if any(new.storage in caches for new in call.made)}
    pieces = []
    for piece, mark in zip(cut, begins):
        told = [one for event in piece for one in _labelled(event, sites, layouts, given)]
        if told:
            pieces.append(_Piece(told, _made_in(told), mark.more, mark.outputs))
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


def _labelled(
    event: Event, sites: set[Any], layouts: list[Layout], given: frozenset[int]
) -> list[Event]:
    """What is made where caches are is one, also where nothing reads it any more."""
    if isinstance(event, Phase) or (isinstance(event, Label) and event.category == INPUT):
        return []
    if isinstance(event, Call) and event.made and event.site in sites:
        real = [n for n in event.made if _is_real(layouts[event.results[n.result].layout])]
        return [event, Label(CACHE, [new.storage for new in real])] if real else [event]
    if isinstance(event, Call) and any(new.storage in given for new in event.made):
        return [event, Label(INPUT, [new.storage for new in event.made])]
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
            begin += size * count
            skipped = self._skipped_from(begin)
            more = rounds[-1].more + len(skipped)
            if more and count == 1:
                raise NotEven
            for one in rounds[: _TOLD - 1]:
                events += self._part(one)
            if count > 1:
                events += self._part(rounds[_TOLD - 1], count - _TOLD + 1 + more)
                begin += len(skipped)
                after = self._stand_in(rounds, skipped)
                if after:
                    self._pieces.insert(begin, _Piece(after, _made_in(after), 0))
        return events

    def _skipped_from(self, begin: int) -> list[_Piece]:
        end = begin
        while end < len(self._pieces) and self._pieces[end].outputs is not None:
            end += 1
        return self._pieces[begin:end]

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
            if any(piece.outputs is not None for piece in self._pieces[end - size : end]):
                break
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
                        found.numbers.extend(_numbers((new.size,)))
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

    def _stand_in(self, rounds: list[_Piece], skipped: list[_Piece]) -> list[Event]:
        """What follows calls the last rounds as those that are told. Of what the rounds keep, the
        older go with those of the second that is told. -> what follows the last one that was left
        out."""
        last = rounds[-1]
        matched = [_matched(piece, last) for piece in skipped]
        known = [dict(zip(one.made, range(len(one.made)))) for one in rounds]
        known += [names for names, _ in matched]
        for index, names in enumerate(known):
            told = rounds[max(_TOLD - len(known) + index, 0)].made
            self._names.update({number: told[place] for number, place in names.items()})
            if index < len(known) - _TOLD:
                self._dropped.update(names)
        if not skipped:
            return []
        after = skipped[-1].events[matched[-1][1] :]
        # What a model keeps by itself stays where it is while the model is left out.
        gone = {e.storage for p in skipped for e in p.events if isinstance(e, Free)}
        gone -= {e.storage for e in after if isinstance(e, Free)}
        for place, number in enumerate(last.made):
            if number not in gone:
                self._names[number] = rounds[_TOLD - 1].made[place]
                self._dropped.discard(number)
        return after

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


def _matched(piece: _Piece, like: _Piece) -> tuple[dict[int, int], int]:
    """Of a round whose forward was left out: for what it makes the place among what one that ran
    makes; and where it ends."""
    place = {number: index for index, number in enumerate(like.made)}
    names: dict[int, int] = {}
    outputs = iter(piece.outputs)
    outside = (e for e in like.events if isinstance(e, Call) and e.place.module is None)
    end = 0
    for index, event in enumerate(piece.events):
        if not isinstance(event, Call):
            continue
        if event.place.module is not None:
            stands_for = next(outputs, 0)
            if stands_for in place and event.made:
                names[event.made[0].storage] = place[stands_for]
        else:
            other = next(outside, None)
            if other is None or other.op != event.op or len(other.made) != len(event.made):
                break
            for new, old in zip(event.made, other.made):
                names[new.storage] = place[old.storage]
        end = index + 1
    return names, end


class Evenness:
    """How many rounds, up to the last, are alike and grow evenly, as they come."""

    def __init__(self, layouts: list[Layout]) -> None:
        self._teller = _Teller([], layouts, set())
        self.forget()

    def forget(self) -> None:
        self.count = 0
        self._rounds: list[_Piece] = []
        self._last: list[_Description] = []

    def add(self, events: list[Event]) -> int:
        told: list[Event] = [e for e in events if not isinstance(e, (Phase, Label))]
        one = _Piece(told, _made_in(told), 0)
        found = self._teller._described(one, [piece.made for piece in self._rounds])
        last = self._last
        alike = bool(last) and found.structure == last[-1].structure
        if alike and len(last) > 1:
            alike = _is_even(last, found, 2)
        if alike and self.count >= _TOLD:
            alike = found.names == last[-1].names
        self.count = self.count + 1 if alike else 1
        self._last = [*last[-1:], found] if alike else [found]
        self._rounds = [*self._rounds[2 - _TOLD :], one] if alike else [one]
        return self.count


def _is_even(told: list[_Description], found: _Description, count: int) -> bool:
    """Whether each number goes on as it went from the first round to the second."""
    first, second = told[0].numbers, told[1].numbers
    if not len(first) == len(second) == len(found.numbers):
        return False
    return all(n == a + count * (b - a) for a, b, n in zip(first, second, found.numbers))


def _shape(layout: Layout) -> tuple[Any, tuple[int, ...]]:
    """What is the same in all rounds, and the numbers. Strides of what has no gaps follow from its
    sizes."""
    sizes, strides = _numbers(layout.sizes), _numbers(layout.strides)
    order = _dense_order(sizes, strides)
    if order is not None:
        return (layout.dtype, order), sizes
    return (layout.dtype, len(sizes)), sizes + strides


def _numbers(numbers: tuple[Number, ...]) -> tuple[int, ...]:
    """Of one run, where each has one value."""
    return tuple(number for number in numbers if isinstance(number, int))


def _dense_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    order = sorted(range(len(sizes)), key=lambda d: (sizes[d] == 1, -strides[d]))
    elements = 1
    for d in reversed(order):
        if sizes[d] > 1 and strides[d] != elements:
            return None
        elements *= max(sizes[d], 1)
    return tuple(order)


def _bytes_of(layout: Layout) -> int:
    size = _BYTES.get(layout.dtype, 0)
    for n in _numbers(layout.sizes):
        size *= n
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
