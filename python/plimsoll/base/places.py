"""Who is at work: the line of the user's code and the module, for each operator.

In a backward there is no line to look at, and the module that ran is long gone. Autograd numbers
its nodes as they are made; the number under which an operator ran in the forward says, in the
backward, whose gradient is being computed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Callable

import torch
from torch.nn.modules import module as nn_module

from .lists import ListsOfModules
from .liveness import variables_of
from .place import Place
from .written import Origin, Written

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)

#: By the address of a code, which is kept so that it stays its own: a code is slow to hash.
_users: dict[int, tuple[CodeType, bool]] = {}


def _is_users(code: CodeType) -> bool:
    """Whether this is code of the user (or of a library over torch, such as transformers)."""
    known = _users.get(id(code))
    if known is None:
        known = _users[id(code)] = code, _is_users_file(code.co_filename)
    return known[1]


def _is_users_file(name: str) -> bool:
    standard = name.startswith(_STANDARD) and not any(part in name for part in _INSTALLED)
    return not (standard or name.startswith((_PACKAGE, _TORCH, "<frozen", "<@beartype")))


def holds_results(code: CodeType) -> bool:
    """Whether this is a function whose variables may hold what a model computes: the user's, or one
    of torch's own modules. Not what dispatches operators, nor a script's own lines, which are in no
    function."""
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    name = code.co_filename
    return is_function and (_is_users_file(name) or name.startswith(_TORCH + "nn" + os.sep))


#: Likewise.
_editable: dict[int, tuple[CodeType, bool]] = {}


def is_editable(code: CodeType) -> bool:
    """Whether this is a function in a file of the user's own, into which a line can be put."""
    known = _editable.get(id(code))
    if known is None:
        known = code, not code.co_name.startswith("<") and in_own_file(code)
        _editable[id(code)] = known
    return known[1]


def in_own_file(code: CodeType) -> bool:
    return _is_users(code) and not any(part in code.co_filename for part in _INSTALLED)


def is_package(code: CodeType) -> bool:
    """Whether this is code of ours."""
    return code.co_filename.startswith(_PACKAGE)


def is_own_file(name: str) -> bool:
    """Not of a library."""
    return _is_users_file(name) and not any(part in name for part in _INSTALLED)


@functools.cache
def describe(code: CodeType, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line} in {code.co_name}"


def line_of(error: BaseException) -> str | None:
    """The innermost line of the user's code that an exception came through."""
    found = None
    for frame, line in _frames(error.__traceback__):
        if _is_users(frame.f_code):
            found = describe(frame.f_code, line)
    return found


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


_loop: CodeType | None = None


def set_loop(code: CodeType) -> None:
    """Tells which function is the training loop: what it does itself is nobody's line."""
    global _loop
    _loop = code


def is_loop(code: CodeType) -> bool:
    return code is _loop


def current_line() -> str | None:
    """The innermost line of the user's code on the stack, as far as the training loop."""
    frame = current_frame()
    return None if frame is None else describe(frame.f_code, frame.f_lineno)


def current_frame() -> FrameType | None:
    """Of the innermost function of the user's on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _is_users(code):
            return frame
        if code is _loop:
            return None
        frame = frame.f_back
    return None


def is_called_in(name: str) -> bool:
    """Whether a function of this name has called this."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame.f_code.co_name == name


_NOWHERE = Place(None, None, 1)


class Places:
    """Follows the modules of the models that it knows while it is open."""

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self._names: dict[int, str] = {}
        if model is not None:
            self.know(model)
        self._running: list[str | None] = []
        #: What the modules are given.
        self.lists = ListsOfModules()
        self._made_at: dict[int, Place] = {}
        self._hooks: list[Any] = []
        #: What a compiler wrote of the models.
        self.written = Written()
        #: What runs is what a compiler looks at.
        self.in_region = False
        #: By node: the module that was compiled.
        self._compiled_at: dict[int, str] = {}
        #: Called when a module of the model begins, outside any other and outside a backward.
        self.on_forward: Callable[[], None] = lambda: None

    def __enter__(self) -> Places:
        self.hear(True)
        return self

    def __exit__(self, *args: object) -> None:
        self.hear(False)

    def hear(self, on: bool) -> None:
        """Whether modules tell when they begin and end."""
        if on and not self._hooks:
            self._hooks = [
                nn_module.register_module_forward_pre_hook(self._enter),
                nn_module.register_module_forward_hook(self._leave, always_call=True),
            ]
        elif not on:
            while self._hooks:
                self._hooks.pop().remove()

    def region(self, on: bool) -> None:
        """Whether what runs is what a compiler looks at. It would compile hooks on modules."""
        if on == self.in_region:
            return
        self.in_region = on
        self.hear(not on)
        if on:
            if not self._running and torch._C._current_autograd_node() is None:
                self.before_region()
                self.on_forward()
            self._running.append(self._running[-1] if self._running else "")
        elif self._running:
            self._running.pop()

    def before_region(self) -> None:
        """For those who look for models: inside, none of them is called by itself."""

    def know(self, model: torch.nn.Module) -> None:
        self._names.update({id(module): name for name, module in model.named_modules()})

    def know_as(self, module: torch.nn.Module, name: str) -> None:
        self._names[id(module)] = name

    def in_model(self) -> bool:
        """Whether a module of the model is running."""
        return bool(self._running)

    def current(self) -> Place:
        """Of the operator that is being dispatched, below autograd."""
        node = torch._C._current_autograd_node()
        if self.written:
            origin = self.written.running(sys._getframe(1))
            if origin is not None:
                return self._in_written_code(origin, node)
        # A module that runs inside a backward is a checkpoint that computes its forward again.
        if node is not None and not self._running:
            return self._made_at.get(node._sequence_nr(), _NOWHERE)
        place = Place(
            current_line(),
            self._running[-1] if self._running else None,
            0 if node is None else 1,
        )
        # Autograd makes the node of an operator just before it runs it, so that the first operator
        # after a node was made is the one that it belongs to.
        made = torch._C._autograd._get_sequence_nr() - 1
        if made not in self._made_at:
            self._made_at[made] = Place(place.where, place.module, 1)
        return place

    def _in_written_code(self, origin: Origin, node: Any) -> Place:
        """Its forward's node has been made, and is the last one; the backward runs inside it."""
        if node is None:
            compiled = self._running[-1] if self._running else ""
            self._compiled_at[torch._C._autograd._get_sequence_nr() - 1] = compiled or ""
        else:
            compiled = self._compiled_at.get(node._sequence_nr(), "")
        lines = (line for line in reversed(origin.frames) if _is_users_file(line[0]))
        where = next((f"{os.path.basename(f)}:{line} in {name}" for f, line, name in lines), None)
        module = ".".join(filter(None, (compiled, origin.module)))
        return Place(where, module, 0 if node is None else 1)

    def knows(self, module: torch.nn.Module) -> bool:
        return id(module) in self._names

    @contextlib.contextmanager
    def inside(self, module: torch.nn.Module) -> Iterator[None]:
        """Of one that runs without telling."""
        self._enter(module, ())
        try:
            yield
        finally:
            self._leave(module, (), None)

    def before_module(self, module: torch.nn.Module) -> None:
        """For those who look for models: called before the forward of any module."""

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self.before_module(module)
        name = self._names.get(id(module))
        if name is not None and not self._running and torch._C._current_autograd_node() is None:
            self.on_forward()
        # A module that is not the model's (a loss, say) counts as part of what called it.
        outer = self._running[-1] if self._running else None
        self._running.append(outer if name is None else name)
        # A hook on all modules is not told what is given by name, which is where it is called.
        named = dict(variables_of(sys._getframe(1))).get("kwargs") or {}
        self.lists.begin(name, [*args, *named.values()])

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        self.lists.end()
        if self._running:
            self._running.pop()
