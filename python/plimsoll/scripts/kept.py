"""Who keeps what a step leaves behind: the name of the variable or attribute that holds it, and the
line of the user's code that puts it there.

A line that makes a tensor is known of every storage. What a job has to change is another one: the
list that it is put into.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import torch

from ..base.places import in_own_file
from .run import Kept

#: From a tensor to the variable that holds it: a list in a dictionary in an attribute.
_DEEPEST = 4
#: Referrers of one object, and tensors, that are looked at.
_MOST = 64


def find_keeper(is_kept: Callable[[torch.Tensor], bool]) -> Kept | None:
    """Of the tensors for which `is_kept`: who holds the first of them. To be called from within the
    script, whose frames are looked at."""
    frames = list(_frames(sys._getframe(1)))
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    kept = [one for one in tensors if is_kept(one)][:_MOST]
    ours = {id(tensors), id(kept)}
    del tensors
    for tensor in kept:
        name, file = _holder(tensor, frames, ours, _DEEPEST)
        if name:
            return Kept(name, _line_that_fills(name, file, frames))
    return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if in_own_file(frame.f_code):
            yield frame
        frame = frame.f_back


def _holder(
    value: Any, frames: list[FrameType], ours: set[int], depth: int
) -> tuple[str, str]:
    """The name under which it is held, and the file of a class where it is an attribute."""
    for frame in frames:
        for name, local in frame.f_locals.items():
            if local is value and not name.startswith("_"):
                return name, frame.f_code.co_filename
    if not depth:
        return "", ""
    for referrer in gc.get_referrers(value)[:_MOST]:
        if id(referrer) in ours or isinstance(referrer, (FrameType, ModuleType)):
            continue
        found = _held_in(referrer, value, frames, ours, depth)
        if found[0]:
            return found
    return "", ""


def _held_in(
    referrer: Any, value: Any, frames: list[FrameType], ours: set[int], depth: int
) -> tuple[str, str]:
    if isinstance(referrer, (dict, list, tuple, set)):
        owner = _owner_of(referrer) if isinstance(referrer, dict) else None
        if owner is None:
            return _holder(referrer, frames, ours | {id(referrer)}, depth - 1)
        referrer = owner
    if isinstance(referrer, torch.Tensor):
        return "", ""
    attributes = getattr(referrer, "__dict__", {})
    name = next((key for key, held in attributes.items() if held is value), "")
    kind = type(referrer)
    return (f"{kind.__name__}.{name}", _file_of(kind)) if name else ("", "")


def _owner_of(attributes: dict[Any, Any]) -> Any:
    """The object that has these attributes. Newer releases of Python make the dictionary only where
    somebody asks for it, and name the object itself as what refers to them."""
    for one in gc.get_referrers(attributes)[:_MOST]:
        if getattr(one, "__dict__", None) is attributes and not isinstance(one, ModuleType):
            return one
    return None


def _file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or ""


def _line_that_fills(name: str, file: str, frames: list[FrameType]) -> str:
    last = re.escape(name.rsplit(".", 1)[-1])
    fills = re.compile(
        rf"\b{last}\s*(\[.*\])?\s*(\.(append|extend|add|insert|update|setdefault)\b|\+=)"
        rf"|\b{last}\s*\[.*\]\s*=[^=]|\b{last}\s*=.*\b{last}\b"
    )
    for path in dict.fromkeys([file, *(frame.f_code.co_filename for frame in frames)]):
        for number, line in enumerate(_lines_of(path), 1):
            if fills.search(line.split("#")[0]):
                return f"{os.path.basename(path)}:{number}"
    return ""


def _lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
