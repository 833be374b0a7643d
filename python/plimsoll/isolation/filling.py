"""A disk that fills with what a script changes: the script is ended before the disk is full."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Callable

_EVERY = 0.5


def free_bytes(folder: str) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


class Filling:
    def __init__(self) -> None:
        #: What was taken of the disk when the script was ended; 0 where it was not.
        self.taken = 0


@contextlib.contextmanager
def ended_before_full(
    folder: str, end: Callable[[], None], free: Callable[[str], int] = free_bytes
) -> Iterator[Filling]:
    """Calls `end`, once, when half of the bytes that were free are taken."""
    filling, over, before = Filling(), threading.Event(), free(folder)

    def look() -> None:
        while not over.wait(_EVERY):
            with contextlib.suppress(OSError):
                left = free(folder)
                if left < before // 2:
                    filling.taken = before - left
                    end()
                    return

    thread = threading.Thread(target=look, name="plimsoll", daemon=True)
    thread.start()
    try:
        yield filling
    finally:
        over.set()
        thread.join()
