"""A loop of the script's own that asks a model for one token after another: once its rounds are
seen to be alike, the model is no longer computed, and gives back what it would have."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, NamedTuple

import torch
from torch import nn

from ..events.pieces_of_run import Evenness
from ..events.recorder import Recorder, on_device

#: Rounds that are alike before the model's results are looked at, and of those as many before it is
#: left out.
_ALIKE, _LOOKED_AT = 4, 2

Shape = tuple[int, ...]


class _Seen(NamedTuple):
    """One forward."""

    given: list[Shape]
    made: Any
    leaves: list[torch.Tensor]


class Skipped(NamedTuple):
    """A forward that was left out: of each tensor that it gives back, the storage of the last
    forward that ran."""

    outputs: list[int]


class Skipping:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._even = Evenness(recorder.layouts)
        self._module: nn.Module | None = None
        #: The last two forwards that ran, of the model at hand.
        self._seen: list[tuple[list[Shape], list[Shape]]] = []
        self._last: Any = None
        self._outputs: list[int] = []
        self._rounds = 0
        #: Called with each that is left out.
        self.on_skipped: Callable[[Skipped], None] = lambda skipped: None

    def round_ended(self, events: list[Any], module: nn.Module | None) -> None:
        """Before the next forward, with what the last round did."""
        if self._rounds:
            return
        alike = self._even.add(events)
        if alike >= _ALIKE and module is not None and self._module is None:
            self._install(module)
        elif alike < _ALIKE and self._module is not None:
            self._stop()

    def _install(self, module: nn.Module) -> None:
        # Of a model that is compiled, or wrapped by hand, the forward is not its own.
        if "forward" in vars(module) or getattr(module, "_compiled_call_impl", None) is not None:
            return
        self._module = module
        real = module.forward

        @functools.wraps(real)
        def forward(*args: Any, **kwargs: Any) -> Any:
            given = _shapes([args, kwargs])
            if self._even.count >= _ALIKE + _LOOKED_AT and len(self._seen) == _LOOKED_AT:
                if given == self._grown(0):
                    return self._skip()
                self._stop()
                self._even.forget()
                return real(*args, **kwargs)
            made = real(*args, **kwargs)
            self._look_at(given, made)
            return made

        module.forward = forward

    def _stop(self) -> None:
        """The model computes again."""
        if self._module is not None:
            vars(self._module).pop("forward", None)
        self._module = None
        self._seen, self._last, self._rounds = [], None, 0

    def _look_at(self, given: list[Shape], made: Any) -> None:
        leaves = _leaves(made)
        self._seen = [*self._seen[-1:], (given, [_shape(leaf) for leaf in leaves])]
        # What it is like, without keeping it alive.
        self._outputs = [self._recorder.number(leaf) for leaf in leaves]
        self._last = _described(made)

    def _grown(self, which: int) -> list[Shape]:
        """What the forward at hand is given, or makes, if it goes on as the last two."""
        before, last = self._seen[-2][which], self._seen[-1][which]
        if len(before) != len(last) or any(len(a) != len(b) for a, b in zip(before, last)):
            return []
        more = self._rounds + 1
        return [
            tuple(n + more * (n - m) for m, n in zip(a, b)) for a, b in zip(before, last)
        ]

    def _skip(self) -> Any:
        shapes = iter(self._grown(1))
        self._rounds += 1
        self.on_skipped(Skipped(list(self._outputs)))
        return _made(self._last, shapes)


# What a model gives back.


class _Leaf(NamedTuple):
    dtype: torch.dtype
    device: torch.device


def _shape(tensor: torch.Tensor) -> Shape:
    return tuple(tensor.shape)


def _shapes(value: Any) -> list[Shape]:
    return [_shape(leaf) for leaf in _leaves(value)]


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if on_device(value) else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _leaves(one)]
    return []


def _described(value: Any) -> Any:
    """The same with a note in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return _Leaf(value.dtype, value.device) if on_device(value) else value
    if isinstance(value, dict):
        described = copy.copy(value)
        for key, one in value.items():
            described[key] = _described(one)
        return described
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_described, value))
    if isinstance(value, (list, tuple)):
        return type(value)(_described(one) for one in value)
    return value


def _made(value: Any, shapes: Any) -> Any:
    if isinstance(value, _Leaf):
        return torch.empty(next(shapes), dtype=value.dtype, device=value.device)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, one in value.items():
            made[key] = _made(one, shapes)
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_made(one, shapes) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_made(one, shapes) for one in value)
    return value
