"""Lists and dictionaries that modules are given.

They may change once a module has run, as those do in which a dense block collects what its layers
make, or while it runs. A checkpoint that runs the module again would give it another list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class GivenLists(NamedTuple):
    """Modules by their paths."""

    to: frozenset[str] = frozenset()
    #: They change one while they run.
    changed_by: frozenset[str] = frozenset()

    def described(self) -> dict[str, Any]:
        """For the job's file."""
        if not self.to:
            return {}
        return {"lists": {"given_to": sorted(self.to), "changed_by": sorted(self.changed_by)}}


def of_all(runs: Iterable[GivenLists]) -> GivenLists:
    """Of what was run several times."""
    found = list(runs)
    return GivenLists(
        frozenset().union(*(one.to for one in found)),
        frozenset().union(*(one.changed_by for one in found)),
    )


class ListsOfModules:
    """Told when a module begins and ends, and with what."""

    def __init__(self) -> None:
        self._to: set[str] = set()
        self._changed_by: set[str] = set()
        #: Of each module that runs: its path, lists that it was given, and what was in them.
        self._running: list[tuple[str | None, list[Any], list[Any]]] = []

    @property
    def found(self) -> GivenLists:
        return GivenLists(frozenset(self._to), frozenset(self._changed_by))

    def begin(self, path: str | None, given: list[Any]) -> None:
        lists = [value for value in given if _is_list(value)] if path else []
        self._running.append((path, lists, [_inside(one) for one in lists]))

    def end(self) -> None:
        if not self._running:
            return
        path, lists, before = self._running.pop()
        if path and lists:
            self._to.add(path)
            if [_inside(one) for one in lists] != before:
                self._changed_by.add(path)


#: Lists in lists that are looked into; one may be in itself.
_DEPTH = 8


def _is_list(value: Any, depth: int = 0) -> bool:
    """Or a tuple with one in it."""
    if isinstance(value, tuple):
        return depth < _DEPTH and any(_is_list(each, depth + 1) for each in value)
    return isinstance(value, (list, dict))


def _inside(value: Any, depth: int = 0) -> Any:
    """By identity, so that no tensor is held, which would tell of another life than it has."""
    if depth < _DEPTH and isinstance(value, (list, tuple)):
        return [id(value), *(_inside(each, depth + 1) for each in value)]
    if depth < _DEPTH and isinstance(value, dict):
        pairs = value.items()
        return [id(value), *((id(key), _inside(each, depth + 1)) for key, each in pairs)]
    return id(value)
