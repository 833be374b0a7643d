"""The loops of a script's own files: which of them train, and where one is cut short.

Loaders are cut short where they give their batches (later.py). A loop over a list, a generator or
a counter has no such place, so branches.py puts marks into it:

    for x in batches:                 for x in ROUNDS(3, batches):
    while step < 1000:                while GOES(4, step < 1000):

Behind the steps that are followed, a loop that trains ends: the one at hand at once, a later one
after a round. The epochs around it end after two more. A counter has its last value in the last
round, since sizes may go by it. So the script gets to what it does next.
A loop that evaluates ends after three rounds where its length is known and its rounds are alike.
"""

from __future__ import annotations

import gc
import operator
import os
import sys
from collections.abc import Iterator
from typing import Any, Callable, Protocol

from torch.compiler import is_compiling

from ..base.places import in_own_file
from ..events.event import Call
from ..events.recorder import Recorder
from .branches import GOES, ROUNDS, STARTS, Marker
from .later import BATCHES, EVALUATION, Later
from .run import NotFollowed

#: Rounds of a loop around one that trains, which begin behind the steps.
_EPOCHS = 2
#: Optimizer steps of a loop that trained nothing before: the state is made, found, and as always.
_NEW_STEPS = 3
#: Optimizer steps while something is to come due, and epochs.
_TO_COME_DUE = 6
_EPOCHS_TO_COME_DUE = 24
#: Bytes that a round of epochs leaves, at a small batch.
_MUCH_LEFT = 16 << 10


class Steps(Protocol):
    """What is known of the steps of a script."""

    @property
    def is_beyond_steps(self) -> bool:
        """They are over, and the script is still followed."""

    @property
    def is_wanted(self) -> bool:
        """Something is to come due."""

    @property
    def wants_epochs(self) -> bool:
        """Likewise, outside the loop that trains."""

    @property
    def trains_from_loaders(self) -> bool: ...

    def begin_later(self) -> None:
        """What comes now belongs to no step that was wanted."""


class _Loop:
    """One run of a loop, from its first round on. Also the iterator of a `for`."""

    def __init__(self, loops: Loops, number: int, values: Any = None) -> None:
        self._loops = loops
        self.number = number
        self._iterator: Iterator[Any] = iter(()) if values is None else iter(values)
        self.length = _length(values, self._iterator)
        #: Of a counter: its last value was not given yet.
        self._counter = values if isinstance(values, range) and len(values) > 1 else None
        #: The event before which the round began that has that.
        self.last_at: int | None = None
        #: It began before the end of the steps.
        self.is_old = not loops.follows
        #: Rounds and optimizer steps, and those behind the steps.
        self.rounds = self.turns = self.turns_behind = self.rounds_behind = 0
        #: Its batches come from a loader, which is cut short itself.
        self.is_fed = False
        #: An optimizer steps in a loop inside it.
        self.is_outer = False
        #: A model computed in its last round, in no loop inside it.
        self.computed = False
        #: Rounds at its end so far that were evaluations and no training.
        self.evaluated = 0
        #: The event that its round began before, what the round before did, and whether that was
        #: one part.
        self.begin = 0
        self.was_part = False
        #: What its last round left: bytes by storage.
        self.left: dict[int, int] = {}
        self.did: list[Any] = []

    def goes_to_last(self, now: int) -> bool:
        """Whether the next round is the last that there is, as of a counter that sizes go by."""
        if self._counter is None or self.rounds >= len(self._counter):
            return False
        self._iterator, self._counter = iter(self._counter[-1:]), None
        self.last_at = now
        return True

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> Any:
        loops = self._loops
        if loops.ends(self):
            raise StopIteration
        fetched = loops.fetched()
        value = next(self._iterator)
        self.is_fed |= loops.fetched() != fetched
        return value


class Loops:
    def __init__(
        self,
        steps: Steps,
        recorder: Recorder,
        later: Later,
        marker: Marker,
        fetched: Callable[[], int],
    ) -> None:
        """`fetched`: how many batches loaders have given so far."""
        self._steps = steps
        self._recorder = recorder
        self._later = later
        self._marker = marker
        self.fetched = fetched
        #: By number: the run of each loop that began last.
        self._running: dict[int, _Loop] = {}
        #: Loops in which an optimizer steps, and in no loop inside them.
        self._trains: set[int] = set()
        #: By number: loops each of whose rounds leaves more on the GPU.
        self.leaking: set[int] = set()
        #: The innermost loop that a model computed in last.
        self._computed_in: _Loop | None = None

    # What the marks do.

    def functions(self) -> dict[str, Callable[..., Any]]:
        """By name. A compiler looks into functions, and is to see nothing there."""

        def rounds(number: int, values: Any) -> Any:
            return values if is_compiling() else _Loop(self, number, values)

        def starts(number: int) -> None:
            if not is_compiling():
                self._running[number] = _Loop(self, number)

        def goes(number: int, value: Any) -> Any:
            return value if is_compiling() else self._goes(number, value)

        return {ROUNDS: rounds, STARTS: starts, GOES: goes}

    def _goes(self, number: int, value: Any) -> Any:
        loop = self._running.get(number)
        return False if loop is not None and self.ends(loop) else value

    # What happens.

    @property
    def follows(self) -> bool:
        """Behind the steps."""
        return self._later.begun and self._steps.is_beyond_steps

    def turn(self) -> None:
        """An optimizer has its turn."""
        around = self._around()
        for place, number in enumerate(around):
            loop = self._running.get(number)
            if loop is not None:
                loop.turns += 1
                loop.turns_behind += self.follows
                loop.is_outer |= place > 0
        if not around:
            return
        if self.follows and around[0] not in self._trains:
            self._later.came_due = True
        self._trains.add(around[0])

    def computes(self) -> bool:
        """A model begins to. Whether it does so in another loop than before: a loop inside its
        forward is none."""
        around = self._around()
        loop = self._running.get(around[0]) if around else None
        if loop is not None:
            loop.computed = True
        before, self._computed_in = self._computed_in, loop
        return loop is not before

    @property
    def is_beside_training(self) -> bool:
        """The loops that train are known, and this is in none of them."""
        return bool(self._trains) and self._trains.isdisjoint(self._around())

    def _around(self) -> list[int]:
        """The loops that run here, the innermost first."""
        found: list[int] = []
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if in_own_file(code):
                line, name = frame.f_lineno, code.co_name
                here = self._marker.loops_in(code.co_filename, name)
                found += [one.number for one in here if one.first <= line <= one.last]
            frame = frame.f_back  # type: ignore[assignment]
        return found

    # Where one ends.

    def ends(self, loop: _Loop) -> bool:
        """Before a round."""
        self._running[loop.number] = loop
        loop.rounds += 1
        if not self._later.begun and loop.turns and self._steps.is_beyond_steps:
            self._steps.begin_later()
        if not self.follows:
            return False
        computed, loop.computed = loop.computed, False
        if loop.turns:
            ends = self._ends_training(loop)
        else:
            ends = computed and self._ends_evaluation(loop)
        loop.rounds_behind += 1
        return ends

    def _ends_training(self, loop: _Loop) -> bool:
        if self._later.waits or loop.is_fed:
            return False
        wanted = self._steps.is_wanted
        now = len(self._recorder.events)
        if loop.last_at is not None and self._is_new(loop.last_at):
            self._later.came_due = True
        if loop.is_outer:
            self._look_at_left(loop, now)
            waits = wanted or self._steps.wants_epochs
            rounds = loop.rounds_behind
            if rounds < (_EPOCHS_TO_COME_DUE if waits else _EPOCHS - 1):
                return False
            return not loop.goes_to_last(now) and rounds >= _EPOCHS
        # The heaviest batch of a loader comes in the same round as the last value of a counter.
        if not wanted and loop.goes_to_last(now) or loop.turns_behind < self._most(loop, wanted):
            return False
        self._later.leave_step()
        return True

    def _look_at_left(self, loop: _Loop, now: int) -> None:
        """Behind a round of a loop around one that trains: whether each leaves more on the GPU."""
        begin, loop.begin = loop.begin, now
        if not loop.rounds_behind:
            return
        alive = self._recorder.alive()
        before = {number: size for number, size in loop.left.items() if number in alive}
        made = self._made_beside_training(begin, now)
        loop.left = {number: size for number, size in made.items() if number in alive}
        if min(sum(before.values()), sum(loop.left.values())) > _MUCH_LEFT:
            self.leaking.add(loop.number)

    def _made_beside_training(self, begin: int, end: int) -> dict[int, int]:
        """Bytes by storage. What training steps leave is known as a leak of each step."""
        parts = self._later.parts
        ends = [at for at, _ in parts[1:]] + [end]
        made: dict[int, int] = {}
        for (at, part), until in zip(parts, ends):
            if part.stage == EVALUATION and until > begin:
                for event in self._recorder.events[max(at, begin) : min(until, end)]:
                    if isinstance(event, Call):
                        made.update((one.storage, one.size) for one in event.made)  # type: ignore[misc]
        return made

    def not_followed(self) -> list[NotFollowed]:
        """Loops whose rounds leave more and more, of which two were followed."""
        found = (self._marker.loops[number] for number in sorted(self.leaking))
        what = "each round of the loop leaves more on the GPU"
        return [NotFollowed(what, os.path.basename(one.path), one.line) for one in found]

    def _most(self, loop: _Loop, wanted: bool) -> int:
        """Optimizer steps of a loop behind the steps."""
        if wanted:
            return _TO_COME_DUE
        if loop.is_old:
            return 1 if self._steps.trains_from_loaders else 0
        return 1 if loop.number in self._trained_in_steps else _NEW_STEPS

    def _is_new(self, begin: int) -> bool:
        """A step has sizes that the steps did not have."""
        steps = {str(one) for one in _calls(self._recorder.events[: self._later.at])}
        return any(str(one) not in steps for one in _calls(self._recorder.events[begin:]))

    def _ends_evaluation(self, loop: _Loop) -> bool:
        later, recorder = self._later, self._recorder
        if later.stage != EVALUATION or loop.is_fed:
            return False
        now = len(recorder.events)
        did, is_part = _calls(recorder.events[loop.begin : now]), later.parts[-1][0] == loop.begin
        is_alike = did == loop.did and is_part and loop.was_part
        loop.did, loop.was_part, loop.begin = did, is_part, now
        loop.evaluated += 1
        if loop.evaluated > BATCHES or not loop.length:
            return False  # it is followed to its end, as one part
        if loop.evaluated == BATCHES and is_alike and loop.length > BATCHES:
            later.cut_short(loop.length, BATCHES)
            return True
        later.leave_evaluation()
        return False

    def steps_end(self) -> None:
        """The steps that are wanted are over."""
        self._trained_in_steps = frozenset(self._trains)

    _trained_in_steps: frozenset[int] = frozenset()


def _calls(events: list[Any]) -> list[Any]:
    """What is alike in rounds that are alike."""
    return [
        (event.op, [result.layout for result in event.results])
        for event in events
        if isinstance(event, Call)
    ]


def _length(values: Any, iterator: Any, depth: int = 3) -> int:
    """Rounds of a loop over these; 0 where that is not known."""
    try:
        return len(values)
    except Exception:
        pass
    known = operator.length_hint(iterator, 0)
    if known or not isinstance(iterator, (enumerate, zip, map)) or not depth:
        return known
    parts = (one for each in gc.get_referents(iterator) for one in _iterators_in(each))
    return min((_length(None, one, depth - 1) for one in parts), default=0)


def _iterators_in(value: Any) -> list[Any]:
    """An enumerate holds an iterator, a zip a tuple of them."""
    if isinstance(value, tuple):
        return [one for one in value if hasattr(one, "__next__")]
    return [value] if hasattr(value, "__next__") else []
