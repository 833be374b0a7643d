"""What a script does after the steps that are wanted: it evaluates, saves, loads, trains on.

Everything is written down as it comes, in parts that follow the steps. So that the script gets
there in seconds, the loaders that it trains with come to their end: the one at hand at once, those
of further epochs after a batch; other loaders after a few.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Callable, NoReturn

from ..base.notes import Note
from ..capturing.garbage import collect_after_step
from ..events.event import PartBegin
from ..events.recorder import Recorder

EVALUATION, SAVE, LOAD, STEP = "evaluation", "save", "load", "step"

#: Batches of a loader that the steps do not take theirs from.
BATCHES = 3
#: Turns of an optimizer in a row, before anything else was seen and after.
_TURNS = {False: 2, True: 8}
#: Time of the processor, which a busy machine does not change, as a multiple of what the steps
#: took, likewise.
_TIMES = {False: 0.5, True: 4.0}
_LEAST_SECONDS = 2.0


class Later:
    """From `begin` on; before that nothing is asked of it but whether it has begun."""

    def __init__(self, recorder: Recorder, note: Note, enough: Callable[[], NoReturn]) -> None:
        self._recorder = recorder
        self._note = note
        self._enough = enough
        #: The event that the steps end before.
        self.at: int | None = None
        #: The event that each part begins before, and the part.
        self.parts: list[tuple[int, PartBegin]] = []
        self._turns = 0
        self._born = time.process_time()
        self._began = 0.0
        self._trained: set[int] = set()
        #: By iterator: batches that it gave since.
        self._given: Counter[int] = Counter()
        self._old: set[int] = set()
        #: What makes an iterator known again is its number: it must not be given to another.
        self._iterators: list[Any] = []

    @property
    def begun(self) -> bool:
        return self.at is not None

    @property
    def stages(self) -> list[str]:
        """Those that were seen, each once."""
        return list(dict.fromkeys(part.stage for _, part in self.parts))

    def begin(self, at: int, trained: set[int]) -> None:
        """`trained`: the data sets, by id, that the steps take their batches from."""
        self.at = at
        self._trained = trained
        self._began = time.process_time()

    @property
    def stage(self) -> str | None:
        """Of the last part."""
        return self.parts[-1][1].stage if self.parts else None

    def enter(self, stage: str) -> None:
        if self.stage != stage:
            self._turns = 0
            collect_after_step(self._recorder, self._note)
            self._add(PartBegin(stage))

    def _add(self, part: PartBegin) -> None:
        assert self.at is not None
        self.parts.append((len(self._recorder.events) if self.parts else self.at, part))

    def turn(self) -> None:
        """An optimizer has its turn."""
        self._turns += 1
        if self._turns > _TURNS[self._saw_more]:
            self.end()

    def check_time(self) -> None:
        """Ends the script where it takes long to get anywhere."""
        limit = _TIMES[self._saw_more] * (self._began - self._born)
        if time.process_time() - self._began > max(limit, _LEAST_SECONDS):
            self.end()

    def end(self) -> NoReturn:
        self._recorder.finish()
        self.drop_steps_alone()
        self._enough()

    def drop_steps_alone(self) -> None:
        """Steps that nothing else came between are those that are known."""
        if self.at is not None and not self._saw_more:
            del self._recorder.events[self.at :]
            self.parts = []

    @property
    def _saw_more(self) -> bool:
        return any(part.stage != STEP for _, part in self.parts)

    # Loaders.

    def ends(self, iterator: Any) -> bool:
        """Whether the iterator of a loader is to come to its end now."""
        if not any(known is iterator for known in self._iterators):
            self._iterators.append(iterator)
        number = id(iterator)
        trains = id(iterator._dataset) in self._trained
        most = BATCHES if not trains else 1
        if trains and number in self._old:
            most = 0
        if self._given[number] < most:
            self._given[number] += 1
            if not trains:
                self._add(PartBegin(EVALUATION))  # each batch by itself
            return False
        if not trains:
            self._cut_short(iterator)
        return True

    def _cut_short(self, iterator: Any) -> None:
        length = _length(iterator)
        if length <= BATCHES or self.stage != EVALUATION:
            return
        begin, last = self.parts[-1]
        self.parts[-1] = begin, PartBegin(last.stage, times=length - BATCHES + 1)
        self._add(PartBegin(EVALUATION, batches=length, seen=BATCHES))

    def know(self, iterator: Any) -> None:
        """One that gave batches before the end of the steps."""
        if id(iterator) not in self._old:
            self._old.add(id(iterator))
            self._iterators.append(iterator)


def _length(iterator: Any) -> int:
    """Batches that it would have given; 0 where that is not known."""
    try:
        drawn = len(iterator._index_sampler)
    except TypeError:
        return 0
    # stand_ins.py draws fewer samples for a larger batch than it has.
    batches = getattr(iterator._collate_fn, "batches", None)
    return drawn if batches is None else int(batches(drawn))
