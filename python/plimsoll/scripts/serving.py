"""Follows a script that trains nothing: it evaluates, scores, generates.

It is cut into pieces, of which events/pieces_of_run.py finds those that are rounds of a loop. So
that a script gets to its end in seconds, loops that are known are cut short where they begin: a
loader after some batches, transformers' generation after some tokens.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..events.event import Call, Event, Phase
from ..events.pieces_of_run import Mark, NotEven, in_pieces
from ..events.recorder import Recorder
from .later import length_of
from .skipping import Skipped, Skipping

#: Batches of a loader, and tokens, after which it ends. The first rounds of a loop are cases of
#: their own, and four more show how it goes on.
BATCHES = 6
TOKENS = 8


class Serving:
    """What is computed until an optimizer steps; nothing is asked of it after that."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._marks: list[Mark] = []
        self._has_forward = False
        #: By loop that was cut short: the piece that stands for more, and whether that must be a
        #: round like those before it.
        self._cut: dict[int, bool] = {}
        #: By iterator of a loader: batches that it gave.
        self._given: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        #: Loaders were cut short, of batches that are not alike.
        self.uneven_batches = False
        self.skips = True
        self.skipping = Skipping(recorder)
        self.skipping.on_skipped = self._skipped

    def forward(self, module: Any) -> None:
        """A model begins to compute."""
        if self._has_forward:
            began = self._marks[-1].event if self._marks else 0
            self.begin()
            if self.skips:
                self.skipping.round_ended(self._recorder.events[began:], module)
        self._has_forward = True

    def _skipped(self, skipped: Skipped) -> None:
        self._marks[-1] = self._marks[-1]._replace(outputs=skipped.outputs)
        self._cut[len(self._marks) - 1] = True

    def begin(self) -> None:
        """Of a batch, of a token, of what follows a loop."""
        at = len(self._recorder.events)
        if not self._marks or self._marks[-1].event < at:
            self._marks.append(Mark(at))
        self._has_forward = False

    def ends(self, iterator: Any, whole: bool) -> bool:
        """Whether the iterator of a loader is to come to its end now; of a `whole` run none is."""
        given = self._given.get(iterator, 0)
        length = length_of(iterator)
        if not whole and given >= BATCHES and length > given:
            self.cut_short(given, length - given, must_be_even=False)
            return True
        self.begin()
        self._given[iterator] = given + 1
        return False

    def cut_short(self, rounds: int, more: int, must_be_even: bool) -> None:
        """The loop at hand ends here, after so many rounds; `more` would have followed."""
        if more > 0 and self._marks:
            self._marks[-1] = self._marks[-1]._replace(more=more)
            self._cut[len(self._marks) - 1] = must_be_even
        self.begin()

    def told(self, first: int, held: set[int], given: frozenset[int]) -> list[Event]:
        """In parts, from the event `first` on. `given`: what comes from the host. Raises
        NotEven."""
        recorder = self._recorder
        marks = [mark for mark in self._marks if mark.event > first]
        events = recorder.events[first:]
        shifted = [mark._replace(event=mark.event - first) for mark in marks]
        try:
            return in_pieces(events, shifted, recorder.layouts, held, given)
        except NotEven:
            if any(self._cut.values()):
                raise
            self.uneven_batches = True
            alone = [mark._replace(more=0) for mark in shifted]
            return in_pieces(events, alone, recorder.layouts, held, given)


def trains(events: list[Event]) -> bool:
    """Whether there is a backward."""
    return any(isinstance(event, Phase) and event.name == "backward" for event in events)


def computes(events: list[Event]) -> bool:
    return any(isinstance(event, Call) and event.place.module is not None for event in events)
