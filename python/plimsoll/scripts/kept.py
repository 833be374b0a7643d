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
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from ..base.places import in_own_file
from .run import Kept

#: From a tensor to the variable that holds it: a list in a dictionary in an attribute.
_DEEPEST = 4
#: Referrers of one object, and tensors, that are looked at.
_MOST = 64
_MOST_LOOKS = 256


class _Holder(NamedTuple):
    name: str
    #: Of the class where it is an attribute.
    file: str
    #: What holds it has room for so many; 0 where it has for all.
    most: int = 0
    #: In a list: at which index, and of how many.
    at: int = 0
    among: int = 0


def find_keeper(is_kept: Callable[[torch.Tensor], bool]) -> Kept | None:
    """Of the tensors for which `is_kept`: who holds the largest, or the largest that is held for
    good. To be called from within the script, whose frames are looked at."""
    frames = list(_frames(sys._getframe(1)))
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    kept = sorted(filter(is_kept, tensors), key=_bytes, reverse=True)[:_MOST]
    search = _Search(frames, {id(tensors), id(kept)})
    del tensors
    found = _for_good(search.holder(tensor) for tensor in kept)
    if found is None:
        return None
    return Kept(found.name, _line_that_fills(found, frames), found.most)


def value_in_script(name: str) -> int:
    """Of a name or attribute ("args.keep"), as the innermost function has it that knows it; 0 where
    that is no number. To be called as `find_keeper` is."""
    first, *attributes = name.split(".")
    for frame in _frames(sys._getframe(1)):
        for names in (frame.f_locals, frame.f_globals):
            if first in names:
                value = names[first]
                for attribute in attributes:
                    value = getattr(value, attribute, None)
                return value if type(value) is int else 0
    return 0


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _for_good(holders: Iterable[_Holder | None]) -> _Holder | None:
    """The first that lets go of nothing, or the one that has room for most."""
    most: _Holder | None = None
    for one in holders:
        if one is not None and not one.most:
            return one
        if one is not None and (most is None or one.most > most.most):
            most = one
    return most


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if in_own_file(frame.f_code):
            yield frame
        frame = frame.f_back


class _Search:
    def __init__(self, frames: list[FrameType], ours: set[int]) -> None:
        """`ours`: lists, by id, that only this search has."""
        self._frames = frames
        self._ours = ours
        #: Times that all of Python's objects may be looked through.
        self._left = _MOST_LOOKS

    def holder(self, value: Any, depth: int = _DEEPEST) -> _Holder | None:
        """The name under which it is held."""
        for frame in self._frames:
            for name, local in frame.f_locals.items():
                if local is value and not name.startswith("_"):
                    return _Holder(name, frame.f_code.co_filename)
        if not depth or not self._left:
            return None
        self._left -= 1
        referrers = gc.get_referrers(value)[:_MOST]
        self._ours.add(id(referrers))
        foreign = (one for one in referrers if id(one) not in self._ours)
        return _for_good(
            self._held_in(one, value, depth)
            for one in foreign
            if not isinstance(one, (FrameType, ModuleType))
        )

    def _held_in(self, referrer: Any, value: Any, depth: int) -> _Holder | None:
        if isinstance(referrer, (dict, list, tuple, set, deque)):
            owner = _owner_of(referrer) if isinstance(referrer, dict) else None
            if owner is None:
                self._ours.add(id(referrer))
                found = self.holder(referrer, depth - 1)
                room = getattr(referrer, "maxlen", None)
                found = found._replace(most=room) if found and room else found
                return _placed(found, referrer, value)
            referrer = owner
        if isinstance(referrer, torch.Tensor):
            return None
        attributes = getattr(referrer, "__dict__", {})
        name = next((key for key, held in attributes.items() if held is value), "")
        kind = type(referrer)
        return _Holder(f"{kind.__name__}.{name}", _file_of(kind)) if name else None


def _placed(found: _Holder | None, referrer: Any, value: Any) -> _Holder | None:
    """With where it lies in the list that has the name."""
    if found is None or found.among or not isinstance(referrer, list):
        return found
    at = next((index for index, one in enumerate(referrer) if one is value), 0)
    return found._replace(at=at, among=len(referrer))


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


def _line_that_fills(found: _Holder, frames: list[FrameType]) -> str:
    last = re.escape(found.name.rsplit(".", 1)[-1])
    fills = re.compile(
        rf"\b{last}\s*(\[.*\])?\s*(\.(append|extend|add|insert|update|setdefault)\b|\+=)"
        rf"|\b{last}\s*\[.*\]\s*=[^=]|\b{last}\s*=.*\b{last}\b"
    )
    for path in dict.fromkeys([found.file, *(frame.f_code.co_filename for frame in frames)]):
        lines = [
            (number, match.group(2) or "")
            for number, line in enumerate(_lines_of(path), 1)
            for match in fills.finditer(line.split("#")[0])
        ]
        if lines:
            return f"{os.path.basename(path)}:{_line_of(lines, found)}"
    return ""


def _line_of(lines: list[tuple[int, str]], found: _Holder) -> int:
    """`lines`: with what each does. Several may put something into a list in each step: those take
    turns, in their order."""
    appends = [number for number, does in lines if does == ".append"]
    if appends and found.among and found.among % len(appends) == 0:
        return appends[found.at % len(appends)]
    return lines[0][0]


def _lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
