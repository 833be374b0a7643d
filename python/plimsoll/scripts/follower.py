"""What the world around a script tells the one who follows it."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Protocol


class Follower(Protocol):
    @property
    def is_beyond_steps(self) -> bool: ...

    @property
    def has_steps(self) -> bool:
        """The last step that is wanted is over."""

    @property
    def is_wanted(self) -> bool:
        """More steps: something of the script's own comes due."""

    def next_batch(self, iterator: Any, give: Callable[[], Any]) -> Any:
        """The next of a loader's iterator, which `give` gives; or a StopIteration."""

    def saves(self, through_host: int) -> None:
        """Something, with so many bytes in the host's memory at a time."""

    def makes_optimizer(self) -> None: ...

    def leaves(self) -> None:
        """What comes now belongs to no batch of an evaluation, nor to all of them."""

    def loading(self, largest: int) -> contextlib.AbstractContextManager[None]:
        """`largest`: bytes of the largest storage that goes through the host to the device."""

    def pins(self, tensor: Any) -> Any:
        """What `tensor.pin_memory()` gives."""

    def is_pinned(self, tensor: Any) -> bool: ...
