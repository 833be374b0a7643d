"""Values in which runs of one job may differ without doing other things."""

from __future__ import annotations

from typing import Any


class Pieces(list[Any]):
    """Those that a run lacks are 0."""


class Name(str):
    """What the first run calls it counts."""
