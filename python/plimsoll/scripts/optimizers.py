"""The optimizers of a script: which have had their turn, and whether one computes."""

from __future__ import annotations

import gc

import torch
from torch.optim import Optimizer

from ..base.notes import Note
from ..base.places import current_frame, is_called_in
from .run import NotFollowed

#: A function of torch.distributed.checkpoint: it lets an optimizer that has no state yet step with
#: gradients of zeros. That is no training.
_MAKES_STATE = "_init_optim_state"


class Optimizers:
    """An optimizer has its turn where it steps by itself, and not inside another one's step."""

    def __init__(self) -> None:
        #: Some were made, whether they stepped or not.
        self.were_made = False
        #: By their ids: those that had their turn in the step at hand, and in the one before.
        self._stepped: list[int] = []
        self._in_a_step: set[int] = set()
        self._depth = 0
        #: Those that were there when the steps were over: their names and parameters.
        self._there: list[tuple[str, set[int]]] = []
        #: Parameters that an optimizer has stepped, by their ids.
        self._updated: set[int] = set()

    # In the step at hand.

    def had_turn(self, optimizer: Optimizer) -> None:
        self._stepped.append(id(optimizer))

    def has_stepped(self, optimizer: Optimizer) -> bool:
        """Where it gets its turn again, the next step begins."""
        return id(optimizer) in self._stepped

    @property
    def any_stepped(self) -> bool:
        return bool(self._stepped)

    @property
    def all_stepped(self) -> bool:
        """As many as in the one before."""
        return self._in_a_step <= set(self._stepped)

    @property
    def are_many(self) -> bool:
        return len(set(self._stepped) | self._in_a_step) > 1

    def end_step(self) -> None:
        self._in_a_step = set(self._stepped)

    def begin_step(self) -> None:
        self._stepped = []

    # Just now.

    def begin(self) -> None:
        """One begins to step, maybe inside another."""
        self._depth += 1

    def end(self, optimizer: Optimizer) -> bool:
        """It has stepped. Whether it has parameters that none had stepped before."""
        self._depth -= 1
        parameters = _parameters_of(optimizer)
        new = not parameters <= self._updated
        self._updated |= parameters
        return new

    @property
    def is_stepping(self) -> bool:
        """One steps, or what it calls runs."""
        return self._depth > 0

    @property
    def computes(self) -> bool:
        """And not the closure that it is given, as by Lightning: that is the loop's, and has
        autograd."""
        if not self._depth or not torch.is_grad_enabled():
            return bool(self._depth)
        frame = current_frame()
        return frame is not None and isinstance(frame.f_locals.get("self"), Optimizer)

    # Those that had no turn.

    def remember(self) -> None:
        """Those that are there: with the script they go."""
        self._there = _all_there()

    @property
    def some_wait(self) -> bool:
        return bool(self._waiting())

    def note_waiting(self, note: Note) -> None:
        """Notes those that are there and had no turn, for parameters of their own."""
        for text in self._without_turn():
            note(f"{text} in the steps that were seen; what it takes is not counted")

    def not_followed(self) -> list[NotFollowed]:
        return [NotFollowed(text) for text in self._without_turn()]

    def _without_turn(self) -> list[str]:
        if not self._there:
            self.remember()
        return [
            f"an optimizer ({name}, {len(parameters)} parameter tensors) had no turn"
            for name, parameters in self._waiting()
        ]

    def _waiting(self) -> list[tuple[str, set[int]]]:
        """Optimizers that had no turn, and parameters that no other one has had."""
        return [
            (name, parameters - self._updated)
            for name, parameters in self._there
            if parameters - self._updated
        ]


def makes_state_alone() -> bool:
    """Whether the optimizer that steps here is to have its state, and trains nothing."""
    return is_called_in(_MAKES_STATE)


def _all_there() -> list[tuple[str, set[int]]]:
    # Of a proxy only the type may be asked: what it stands for may be gone.
    found = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
    return [(type(one).__name__, _parameters_of(one)) for one in found]


def _parameters_of(optimizer: Optimizer) -> set[int]:
    groups = getattr(optimizer, "param_groups", [])
    return {id(parameter) for group in groups for parameter in group["params"]}
