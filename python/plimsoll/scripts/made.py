"""Folders and empty files that followed scripts make beyond their steps."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator


class MadePaths:
    """The runs of one script go on beside each other, in the same folder. What one of them made is
    not in the way of another, and it goes when all have ended."""

    def __init__(self, register: str) -> None:
        """`register`: a file that the runs share."""
        self._register = register
        self._own: set[str] = set()
        os.close(os.open(register, os.O_RDWR | os.O_CREAT, 0o600))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other run makes anything meanwhile."""
        with self._opened() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def add(self, path: str) -> None:
        self._own.add(path)
        with self._opened() as file:
            os.write(file, os.fsencode(path) + b"\0")

    def has(self, path: str) -> bool:
        """Made by any of the runs."""
        return path in self._own or path in self._all()

    def of_others_alone(self, path: str) -> bool:
        return path not in self._own and path in self._all()

    def remove(self) -> None:
        """By whom has waited for all runs. The last first: a folder is empty when what is in it is
        gone. What is not empty was filled by someone else."""
        for path in reversed(self._all()):
            with contextlib.suppress(OSError):
                os.rmdir(path) if os.path.isdir(path) else os.unlink(path)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        file = os.open(self._register, os.O_RDWR | os.O_APPEND)
        try:
            yield file
        finally:
            os.close(file)

    def _all(self) -> list[str]:
        with self._opened() as file:
            whole = os.read(file, os.fstat(file).st_size)
        return [os.fsdecode(path) for path in whole.split(b"\0") if path]
