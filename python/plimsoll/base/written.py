"""Code that a compiler wrote: which line of the user's and which module each line of it is for."""

from __future__ import annotations

import bisect
import re
from types import FrameType
from typing import Any, NamedTuple

_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class Origin(NamedTuple):
    #: File, line and function of each frame, the innermost last.
    frames: list[tuple[str, int, str]]
    #: The module's path, below the one that was compiled.
    module: str


class WrittenCode(NamedTuple):
    """One file of it."""

    path: str
    #: Growing: from such a line on it is for such a node of the compiler's graph.
    nodes: list[tuple[int, Any]]

    def origin(self, line: int) -> Origin | None:
        at = bisect.bisect_right([first for first, _ in self.nodes], line) - 1
        return _origin(self.nodes[at][1]) if at >= 0 else None


def _origin(node: Any) -> Origin | None:
    meta = getattr(node, "meta", None)
    if meta is None:
        return None
    frames = [(name, int(line), function) for name, line, function in _LINE.findall(_trace(meta))]
    # A backward's nodes have those of the forward.
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    modules = [entry[0] for entry in stack.values()]
    return Origin(frames, _path(str(modules[-1])) if modules else "")


def _trace(meta: dict[str, Any]) -> str:
    return str(meta.get("stack_trace") or meta.get("fwd_stack_trace") or "")


def _path(source: str) -> str:
    """"h.0.attn" of "L['self']._modules['h']._modules['0'].attn"."""
    text = re.sub(r"^\w+\['[^']*'\]", "", source)
    text = re.sub(r"\._modules\['([^']*)'\]", r".\1", text)
    text = re.sub(r"\[(?:'([^']*)'|(\d+))\]", lambda m: "." + (m[1] or m[2]), text)
    return text.strip(".")


class Written:
    """All of it, by its files."""

    def __init__(self) -> None:
        self._files: dict[str, WrittenCode] = {}
        self._known: dict[tuple[str, int], Origin | None] = {}

    def __bool__(self) -> bool:
        return bool(self._files)

    def add(self, code: WrittenCode) -> None:
        self._files[code.path] = code

    def running(self, frame: FrameType | None) -> Origin | None:
        """Where on the stack above this frame one of these lines is, what it is for."""
        while frame is not None:
            code = self._files.get(frame.f_code.co_filename)
            if code is not None:
                return self._origin(code, frame.f_lineno)
            frame = frame.f_back
        return None

    def _origin(self, code: WrittenCode, line: int) -> Origin | None:
        key = (code.path, line)
        if key not in self._known:
            self._known[key] = code.origin(line) or Origin([], "")
        return self._known[key]
