"""The order of the casts that autocast makes of an operator's arguments.

They come in the order in which the compiler of torch has arguments evaluated: from the last on
x86-64, from the first elsewhere. Their gradients are cast back in the reverse of it. Which block of
memory each gets follows from that, so told is what x86-64 does, where most jobs train.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from .event import Call, Event, Free, Label, tensors_in

_CAST = "aten._to_copy.default"
_NODE = "ToCopyBackward0"


class Casts:
    """Of one recording, whose events are put in order as they come."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._from_the_first = platform.machine().lower() not in ("x86_64", "amd64")
        #: In a backward: where those begin that were made together, and the last node's number.
        self._begins: list[int] = []
        self._sequence = 0

    def before(self, given: list[Any]) -> None:
        """An operator is told next, with these arguments."""
        if not self._from_the_first:
            return
        node = _node()
        if self._begins and (node is None or node + 1 != self._sequence):
            self._turn_gradients()
        if node is None:
            self._turn_arguments(given)

    def after(self) -> None:
        """It was told."""
        if not self._from_the_first:
            return
        last = self._events[-1]
        node = _node()
        if node is not None and isinstance(last, Call) and last.op == _CAST:
            self._begins.append(len(self._events) - 1)
            self._sequence = node

    def _turn_arguments(self, given: list[Any]) -> None:
        used = {tensor.storage for value in given for tensor in tensors_in(value)}
        begin = len(self._events)
        while begin and _casts_to(self._events[begin - 1], used):
            begin -= 1
        self._events[begin:] = reversed(self._events[begin:])

    def _turn_gradients(self) -> None:
        """Each with what it lets go of behind it."""
        events, begins = self._events, self._begins
        self._begins = []
        end = begins[-1] + 1
        while end < len(events) and isinstance(events[end], (Free, Label)):
            end += 1
        groups = [events[a:b] for a, b in zip(begins, [*begins[1:], end])]
        if len(groups) < 2 or _depend(groups):
            return
        shared = [number for number, times in Counter(_given(groups)).items() if times > 1]
        turned = [event for group in reversed(groups) for event in group]
        last = [event for event in turned if _belongs_to_all(event, shared)]
        first = [event for event in turned if not _belongs_to_all(event, shared)]
        events[begins[0] : end] = [*first, *last]


def _belongs_to_all(event: Event, shared: list[int]) -> bool:
    """Labels may be of any of them, and what several take goes when all have."""
    return isinstance(event, Label) or (isinstance(event, Free) and event.storage in shared)


def _given(groups: list[list[Event]]) -> Iterator[int]:
    for group in groups:
        call = group[0]
        assert isinstance(call, Call)
        for value in call.args:
            for tensor in tensors_in(value):
                yield tensor.storage


def _node() -> int | None:
    """The number of the cast whose gradient is computed."""
    node = torch._C._current_autograd_node()
    return node._sequence_nr() if node is not None and node.name() == _NODE else None


def _casts_to(event: Event, used: set[int]) -> bool:
    if not isinstance(event, Call) or event.op != _CAST:
        return False
    return len(event.made) == 1 and event.made[0].storage in used


def _depend(groups: list[list[Event]]) -> bool:
    """Whether one takes what another makes."""
    made: set[int] = set()
    for group in groups:
        call = group[0]
        assert isinstance(call, Call)
        if any(tensor.storage in made for value in call.args for tensor in tensors_in(value)):
            return True
        made.update(new.storage for new in call.made)
    return False
