"""What a script does after the steps that are wanted: it evaluates, saves, loads, trains on.

Everything is written down as it comes, in parts that follow the steps. So that the script gets
there in seconds, the loaders that it trains with come to their end: the one at hand at once, those
of further epochs after a batch; other loaders after a few. Where an optimizer has not had its turn
yet (a generator that is trained once for five steps of its critic), the loader at hand goes on.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, Callable, NoReturn

from ..base.notes import Note
from ..base.places import current_line
from ..capturing.garbage import collect_after_step
from ..events.event import HostPeak, PartBegin, Phase
from ..events.host import HostMemory
from ..events.recorder import Recorder
from .heaviest import Heaviest
from .stop_iteration import stop_is_expected

EVALUATION, SAVE, LOAD, STEP = "evaluation", "save", "load", "step"

#: Batches of a loader that the steps do not take theirs from.
BATCHES = 3
#: Turns of an optimizer in a row, before anything else was seen and after.
_TURNS = {False: 6, True: 16}
#: While another one waits for its own.
_TURNS_WAITING = 100
#: Batches at most in which something comes due that the steps did not reach.
_TO_COME_DUE = 6
#: Time of the processor, which a busy machine does not change, as a multiple of what the steps
#: took, likewise.
_TIMES = {False: 1.5, True: 4.0}
_LEAST_SECONDS = 2.0


class Later:
    """From `begin` on; before that nothing is asked of it but whether it has begun."""

    def __init__(
        self,
        recorder: Recorder,
        host: HostMemory,
        note: Note,
        enough: Callable[[], NoReturn],
        evaluates: Callable[[], bool],
    ) -> None:
        """`evaluates`: whether the models are set to compute without training."""
        self._recorder = recorder
        self._host = host
        #: By part, but for the last.
        self._on_host: list[HostPeak] = []
        self._note = note
        self._enough = enough
        self._evaluates = evaluates
        #: The event that the steps end before.
        self.at: int | None = None
        #: The event that each part begins before, and the part.
        self.parts: list[tuple[int, PartBegin]] = []
        self._turns = 0
        #: Optimizers that have had no turn.
        self._waits = False
        self._another_stepped = False
        self._found_model = False
        #: Something came due that the steps did not have.
        self.came_due = False
        #: Of what is due just now, one in the other: whether the batch before it is trained with.
        self._due: list[bool | None] = []
        #: Whether there is more of that.
        self.is_wanted: Callable[[], bool] = lambda: False
        self.heaviest = Heaviest()
        self._gave_heaviest = False
        #: The event that a step or a save, with all that belongs to it, ends before.
        self._step_ended: int | None = None
        #: The line at which the script was ended, which would have gone on.
        self.ended_at: str | None = None
        #: Whether the batch at hand came from a loader that the steps take theirs from.
        self.batch_trains: bool | None = None
        #: Batches of the loader that the steps took theirs from, if it came to its end sooner.
        self.epoch: int | None = None
        self._born = time.process_time()
        self._began = 0.0
        self._trained: set[int] = set()
        #: By iterator: batches that it gave since.
        self._given: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        #: Those that gave some before.
        self._old: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def begun(self) -> bool:
        return self.at is not None

    @property
    def stages(self) -> list[str]:
        """Those that were seen, each once."""
        return list(dict.fromkeys(part.stage for _, part in self.parts))

    def begin(self, at: int, trained: set[int], waits: bool) -> None:
        """`trained`: the data sets, by id, that the steps take their batches from. `waits`: there
        is an optimizer that has had no turn."""
        self.at = at
        self._trained = trained
        self._waits = waits
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
        self._step_ended = None

    def _add(self, part: PartBegin) -> None:
        """What the script computes between a step and what it does next belongs to that: weights
        are gathered before they are saved."""
        assert self.at is not None
        if self.parts:
            self._on_host.append(self._host.cut())
        begin = self.at if not self.parts else self._step_ended
        self.parts.append((len(self._recorder.events) if begin is None else begin, part))
        self._step_ended = None

    def steps(self) -> None:
        """An optimizer begins to step: what it steps with was no evaluation."""
        if self.stage == EVALUATION and self._has_backward():
            begin, _ = self.parts[-1]
            self.parts[-1] = begin, PartBegin(STEP)
        self.enter(STEP)

    def _has_backward(self) -> bool:
        begin, _ = self.parts[-1]
        return any(event == Phase("backward") for event in self._recorder.events[begin:])

    def turn(self) -> None:
        """An optimizer has its turn."""
        self._turns += 1
        if self._turns > (_TURNS_WAITING if self._waits else _TURNS[self._saw_more]):
            self.end()

    def another_stepped(self, waits: bool) -> None:
        """An optimizer had its first turn. `waits`: there is one more that has not."""
        self._another_stepped = True
        self._waits = waits
        self._turns = 0

    @property
    def waits(self) -> bool:
        """An optimizer has had no turn."""
        return self._waits

    def begin_due(self) -> None:
        self._due.append(self.batch_trains)
        self.batch_trains = None

    def end_due(self) -> None:
        self.batch_trains = self._due.pop()

    def found_model(self) -> None:
        """One that the steps did not have: a teacher, a copy."""
        self._found_model = True

    def check_time(self) -> None:
        """Ends the script where it takes long to get anywhere."""
        limit = _TIMES[self._saw_more or self._waits] * (self._began - self._born)
        if time.process_time() - self._began > max(limit, _LEAST_SECONDS):
            self.end()

    def end(self) -> NoReturn:
        self.ended_at = current_line() or ""
        self._recorder.finish()
        self.drop_steps_alone()
        self._enough()

    @property
    def on_host(self) -> list[HostPeak]:
        """By part: the peak of what the script has in the host's memory."""
        return [*self._on_host, self._host.cut()] if self.parts else []

    def drop_steps_alone(self) -> None:
        """Steps that nothing else came between are those that are known."""
        if self.at is not None and not self._saw_more:
            del self._recorder.events[self.at :]
            self.parts = []

    @property
    def _saw_more(self) -> bool:
        if self._another_stepped or self._gave_heaviest or self._found_model or self.came_due:
            return True
        return any(part.stage != STEP for _, part in self.parts)

    # Loaders.

    def ends(self, iterator: Any) -> bool:
        """Whether the iterator of a loader is to come to its end now."""
        trains = id(iterator._dataset) in self._trained and not self._evaluates()
        # What is done every so many steps with the training's own data is no training.
        trains = trains and not self._due
        self.batch_trains = trains
        if trains and self._waits:
            return False
        most = BATCHES if not trains else 1
        if trains and iterator in self._old:
            most = 0
        if trains and self.is_wanted():
            most = _TO_COME_DUE
        given = self._given.get(iterator, 0)
        if given < most or not stop_is_expected():
            self._given[iterator] = given + 1
            if not trains:
                self._add(PartBegin(EVALUATION))  # each batch by itself
            return False
        self.batch_trains = None
        if not trains:
            self._cut_short(iterator)
        else:
            if iterator in self._old and self.epoch is None:
                self.epoch = length_of(iterator) or None
            self.leave_step()
        return True

    def heaviest_batch(self, iterator: Any, give: Callable[[], Any]) -> Any:
        """Of a loader that the steps take their batches from, before it comes to its end: what is
        heavier than all that were seen gets a step too."""
        data = id(iterator._dataset)
        if self.heaviest.looked or data not in self._trained or iterator not in self._old:
            return None
        began = time.process_time()
        batch = self.heaviest.find(data, give)
        self._began += time.process_time() - began  # what the script itself takes is bounded
        if batch is not None:
            self._gave_heaviest = True
            self.batch_trains = True
            self._add(PartBegin(STEP, heaviest=self.heaviest.looked))
        return batch

    def leave_step(self) -> None:
        """Whatever the script does next does not belong to its last step, or save."""
        if self.stage in (STEP, SAVE) and self._step_ended is None:
            collect_after_step(self._recorder, self._note)
            self._step_ended = len(self._recorder.events)

    def leave_evaluation(self) -> None:
        if self.stage == EVALUATION:
            self._add(PartBegin(EVALUATION))

    def _cut_short(self, iterator: Any) -> None:
        length = length_of(iterator)
        if length > BATCHES and self.stage == EVALUATION:
            self.cut_short(length, BATCHES)

    def cut_short(self, length: int, seen: int) -> None:
        """A loop that evaluates ends here, after `seen` of its rounds."""
        begin, last = self.parts[-1]
        self.parts[-1] = begin, PartBegin(last.stage, times=length - seen + 1)
        self._add(PartBegin(EVALUATION, batches=length, seen=seen))

    def forward(self) -> None:
        """A model computes. A loader that is a batch ahead of its loop comes to its end before its
        last batch is used: then this is not what is done with all of them."""
        if self.parts and self.parts[-1][1].batches != 1:
            begin, part = self.parts[-1]
            self.parts[-1] = begin, PartBegin(part.stage)

    def know(self, iterator: Any) -> None:
        """One that gave batches before the end of the steps."""
        self._old.add(iterator)


def length_of(iterator: Any) -> int:
    """Batches that it would have given; 0 where that is not known."""
    try:
        drawn = len(iterator._index_sampler)
    except TypeError:
        return 0
    # stand_ins.py draws fewer samples for a larger batch than it has.
    batches = getattr(iterator._collate_fn, "batches", None)
    return drawn if batches is None else int(batches(drawn))
