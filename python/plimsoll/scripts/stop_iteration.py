"""Whether a script goes on when an iterator that it asks has no more values.

A `for` ends its loop. A bare `next(batches)` raises StopIteration, which ends a script that does
not catch it: there the loader must not come to its end sooner than in the job itself.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from ..base.places import is_package

_RUNS_SCRIPT = str(Path(__file__).with_name("process.py"))
_CATCHES = ("StopIteration", "Exception", "BaseException")


class _Lines(NamedTuple):
    """Of a file."""

    #: First and last lines of what is tried, where StopIteration is caught.
    tried: list[tuple[int, int]]
    #: Those of `next(x)` and `x.__next__()`, without a value for the end.
    asked: list[tuple[int, int]]


def stop_is_expected() -> bool:
    """Of whoever asks an iterator now: the functions on the stack, the innermost first."""
    is_iterator = True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, line = frame.f_code, frame.f_lineno
        if code.co_filename == _RUNS_SCRIPT:
            return False
        if not is_package(code):
            lines = _lines_of(code.co_filename)
            # A `for`, or something in C that takes all values, asked the iterator below.
            if _is_in(lines.tried, line) or is_iterator and not _is_in(lines.asked, line):
                return True
            if code.co_flags & inspect.CO_GENERATOR:
                return False  # it becomes a RuntimeError
            is_iterator = code.co_name == "__next__"
        frame = frame.f_back
    return False


def _is_in(spans: list[tuple[int, int]], line: int) -> bool:
    return any(first <= line <= last for first, last in spans)


@functools.cache
def _lines_of(file: str) -> _Lines:
    lines = _Lines([], [])
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return lines
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(map(_catches, node.handlers)):
            lines.tried.append((node.body[0].lineno, _last(node.body[-1])))
        elif isinstance(node, ast.Call) and _asks(node):
            lines.asked.append((node.lineno, _last(node)))
    return lines


def _last(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind).rpartition(".")[2] in _CATCHES for kind in kinds)


def _asks(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr == "__next__"
    return isinstance(function, ast.Name) and function.id == "next" and len(call.args) == 1
