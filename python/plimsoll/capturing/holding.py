"""Who holds tensors of the device in Python: variables of running functions, and what outlives them
in globals, lists and attributes. And how to make them let go.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
from collections import deque
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Callable, NamedTuple

import torch

from ..base.liveness import done_with, statement_at, variables_of
from ..base.places import describe, in_own_file, is_editable, is_loop

_DEEPEST = 4
_MOST = 5_000
_NOT_LOOKED_INTO = (ModuleType, type, FunctionType, MethodType, torch.optim.Optimizer, str, bytes)

#: With these a function can read whatever it has.
_BY_ANY_NAME = frozenset(("locals", "vars", "eval", "exec"))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that an object holds, as far as one looks."""
    left = [(value, 0)]
    for _ in range(_MOST):
        if not left:
            return
        value, depth = left.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif depth < _DEEPEST:
            left.extend((part, depth + 1) for part in _parts(value))


def _parts(value: Any) -> list[Any]:
    # Classes of the user's own may compute when they are asked for their elements: not asked.
    if isinstance(value, (list, tuple, set, frozenset, deque, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return list(itertools.islice(parts, _MOST))
    if isinstance(value, (torch.nn.Module, *_NOT_LOOKED_INTO)) or value is None:
        return []
    return list(getattr(value, "__dict__", {}).values())


# Variables of functions that are running.


class Variable(NamedTuple):
    """One that nothing reads any more."""

    frame: FrameType
    name: str
    value: Any

    @property
    def key(self) -> tuple[CodeType, str]:
        return self.frame.f_code, self.name

    @property
    def where(self) -> str:
        """The statement before which it can be let go."""
        return statement_of(self.frame)

    def let_go(self) -> None:
        _assign(self.frame, self.name, None)


def statement_of(frame: FrameType) -> str:
    """The one that is running, as its first line."""
    statement = statement_at(frame.f_code, frame.f_lineno)
    return describe(frame.f_code, statement.line if statement else frame.f_lineno)


def bound_in(frame: FrameType) -> frozenset[str]:
    """The variables that have a value."""
    return frozenset(name for name, _ in variables_of(frame))


def running() -> list[FrameType]:
    """The functions of the user's own files that are running in the training loop."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_loop(frame.f_code):
        if is_editable(frame.f_code):
            frames.append(frame)
        frame = frame.f_back
    return frames if frame is not None else []


def done_variables(frame: FrameType) -> list[Variable]:
    """Those that are not read from the statement on that is running."""
    statement = statement_at(frame.f_code, frame.f_lineno)
    if statement is None or not _BY_ANY_NAME.isdisjoint(frame.f_code.co_names):
        return []
    done = done_with(frame.f_code, frame.f_lasti) - statement.names
    return [Variable(frame, name, value) for name, value in variables_of(frame) if name in done]


def _assign(frame: FrameType, name: str, value: Any) -> None:
    if sys.version_info >= (3, 13):
        frame.f_locals[name] = value
        return
    values = frame.f_locals
    values[name] = value
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    values.clear()


# What stays when the functions have returned.


class Slot(NamedTuple):
    """A place that keeps something from step to step."""

    path: str
    value: Any
    put: Callable[[Any], None]

    @property
    def holds_graph(self) -> bool:
        """It is a number, kept with all that it was computed from."""
        value = self.value
        return isinstance(value, torch.Tensor) and value.numel() == 1 and value.grad_fn is not None

    def let_go(self) -> None:
        self.put(self.value.detach() if self.holds_graph else None)


def slots(functions: list[Any], model: torch.nn.Module) -> Iterator[Slot]:
    """Whatever the user's functions, their globals and the modules of the model keep."""
    walk = _Walk()
    for function in functions:
        yield from _of_function(function, walk)
    plain = set(vars(torch.nn.Module()))
    for name, module in model.named_modules():
        for key, value in list(vars(module).items()):
            if key not in plain:
                path = ".".join(part for part in ("model", name, key) if part)
                yield from walk.into(path, value, functools.partial(setattr, module, key))


def _of_function(function: Any, walk: _Walk) -> Iterator[Slot]:
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, torch.nn.Module):
        yield from walk.members("self", owner)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        yield from walk.members(type(function).__name__, function)
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # nothing is in it yet
            put = functools.partial(setattr, cell, "cell_contents")
            yield from walk.into(name, cell.cell_contents, put)
    if in_own_file(function.__code__):
        names = function.__globals__
        for name, value in list(names.items()):
            yield from walk.into(name, value, functools.partial(names.__setitem__, name))


class _Walk:
    """Looks at each object once, and at not too many."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def into(
        self, path: str, value: Any, put: Callable[[Any], None], depth: int = 0
    ) -> Iterator[Slot]:
        if isinstance(value, (torch.Tensor, tuple, set, frozenset)):
            yield Slot(path, value, put)
            return
        if isinstance(value, (torch.nn.Module, *_NOT_LOOKED_INTO)) or value is None:
            return
        if depth >= _DEEPEST or id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen.add(id(value))
        if isinstance(value, (list, deque, dict)) and len(value) > _MOST:
            return
        if isinstance(value, (list, deque)):
            for i, element in enumerate(list(value)):
                put_element = functools.partial(value.__setitem__, i)
                yield from self.into(f"{path}[…]", element, put_element, depth + 1)
        elif isinstance(value, dict):
            for key, element in list(value.items()):
                put_element = functools.partial(value.__setitem__, key)
                yield from self.into(f"{path}[{key!r}]", element, put_element, depth + 1)
        else:
            yield from self.members(path, value, depth)

    def members(self, path: str, value: Any, depth: int = 0) -> Iterator[Slot]:
        for name, member in list(getattr(value, "__dict__", {}).items()):
            put = functools.partial(setattr, value, name)
            yield from self.into(f"{path}.{name}", member, put, depth + 1)
