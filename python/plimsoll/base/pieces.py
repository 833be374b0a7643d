"""Numbers of which one run of a job has more than another."""

from __future__ import annotations

from typing import Any


class Pieces(list[Any]):
    """Those that a run lacks are 0."""
