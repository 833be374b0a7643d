"""At which lengths a model is captured of which the longest sequence is asked for."""

from __future__ import annotations

from ..events.points import lengths_for

Lengths = tuple[int, int, int]
#: Between these answers are whole numbers by what is captured: the answer is a multiple of it.
_APART = 64
_SHORTEST = 1024
#: Where the configuration does not say how long a sequence may be.
_LONG = 1 << 15


def lengths_to_try(around: int | None, longest: int | None) -> list[Lengths]:
    """To be tried one after the other, since there are models that do something else from some
    length on: their attention sees a window, their positions are scaled. First from a short one to
    the longest that the configuration is for, then a few that lie together. `around`: the answer is
    near it."""
    if around is not None:
        return [_up_to(around), _up_to(around + 2 * _APART)]
    end = (longest or _LONG) // _APART * _APART
    if end <= _SHORTEST + _APART:
        return [_up_to(longest or _LONG)]
    return [(_SHORTEST, _SHORTEST + _APART, end), _up_to(2 * _SHORTEST - _APART)]


def _up_to(end: int) -> Lengths:
    if end <= 2 * _APART:
        return lengths_for(end)
    return end - 2 * _APART, end - _APART, end
