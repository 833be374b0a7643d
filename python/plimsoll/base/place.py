"""Where an operator runs. Apart from places.py, which finds it, so that events need no torch."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    #: The line of the user's code.
    where: str | None
    #: Its path; empty in the model's own forward, None outside of the model.
    module: str | None
    #: 0 the user's thread; 1 the one that a GPU's backward has for itself.
    thread: int
