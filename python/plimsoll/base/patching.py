"""Attributes of other modules, exchanged for a while and put back, whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

_MISSING = object()


class Patch(NamedTuple):
    owner: Any
    name: str
    value: Any


@contextlib.contextmanager
def patched_item(table: MutableMapping[str, str], key: str, value: str) -> Iterator[None]:
    before = table.get(key)
    table[key] = value
    try:
        yield
    finally:
        if before is None:
            table.pop(key, None)
        else:
            table[key] = before


@contextlib.contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Sets them in order and undoes them in reverse. What an owner lacks is removed again."""
    undo: list[Patch] = []
    try:
        for owner, name, value in patches:
            undo.append(Patch(owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(undo):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
