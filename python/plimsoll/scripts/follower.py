"""What the world around a script tells the one who follows it."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol


class Follower(Protocol):
    @property
    def is_beyond_steps(self) -> bool: ...

    def ends_loader(self, iterator: Any) -> bool:
        """Asked before a loader gives its next batch: whether it comes to its end instead."""

    def saves(self) -> None: ...

    def loading(self) -> contextlib.AbstractContextManager[None]: ...
