"""How long the variables of running functions hold what a forward makes.

Autograd holds what it saves until the backward, so that of such a result the capture does not see
when the function that made it lets go. A job with checkpoints, or one that saves on the host, has
that moment: from the last of the two on, the last use and the last variable, the memory is free.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..base.liveness import variables_of
from ..base.places import holds_results
from .event import Call, tensors_in

#: A variable may be a tuple of tensors; a longer one is data of the job's, not a result.
_MOST_IN_ONE = 64


class Variables:
    """Of one run: told of each operator, and of each storage that dies."""

    def __init__(self, number: Callable[[torch.Tensor], int]) -> None:
        """`number`: of the storage that a tensor lies in."""
        self._number = number
        self._calls = 0
        #: By storage: the call that made it and its place in it.
        self._made: dict[int, tuple[Call, int, int]] = {}
        self._used: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    def called(self, call: Call) -> None:
        """While this call runs, outside a backward."""
        self._calls += 1
        if torch._C._current_autograd_node() is not None:
            return
        if torch.is_grad_enabled():
            for tensor in _in_variables(sys._getframe(2)):
                self._seen[self._number(tensor)] = self._calls
        for used in tensors_in([*call.args, *call.kwargs.values()]):
            self._used[used.storage] = self._calls
        for index, new in enumerate(call.made):
            self._made[new.storage] = call, index, self._calls

    def died(self, storage: int) -> None:
        """Writes down for how many calls a variable held it, if it is the variable that counts."""
        seen, used = self._seen.pop(storage, 0), self._used.pop(storage, 0)
        maker = self._made.pop(storage, None)
        if maker is not None and seen > used:
            call, index, made = maker
            call.made[index] = call.made[index]._replace(held=seen - made)


def _in_variables(frame: FrameType | None) -> Iterator[FakeTensor]:
    """Those of all functions that are running."""
    while frame is not None:
        if _can_hold(frame.f_code):
            for _, value in variables_of(frame):
                if isinstance(value, FakeTensor):
                    yield value
                elif type(value) in (tuple, list) and len(value) <= _MOST_IN_ONE:
                    yield from (one for one in value if isinstance(one, FakeTensor))
        frame = frame.f_back


#: By the address of a code, which is kept so that it stays its own: a code is slow to hash.
_known: dict[int, tuple[CodeType, bool]] = {}


def _can_hold(code: CodeType) -> bool:
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = code, holds_results(code)
    return known[1]
