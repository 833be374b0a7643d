"""How far the runs of a script are: told by their processes, read by the one that waits."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .run import STEPS

# Seconds until the first word, and from one to the next.
_FIRST = 20
_EVERY = 60
_COUNTS = struct.Struct("?QQ")
_PROCESS = struct.Struct("Q")


class Counts(NamedTuple):
    #: What comes behind the steps is followed.
    beyond: bool
    steps: int
    operators: int


class Progress:
    """Of one run, in memory that its process shares with the one that forks it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _COUNTS.size + _PROCESS.size)

    def tell(self, steps: int, operators: int, beyond: bool = False) -> None:
        _COUNTS.pack_into(self._memory, 0, beyond, steps, operators)

    def begin(self) -> None:
        """By the process of the run."""
        _PROCESS.pack_into(self._memory, _COUNTS.size, os.getpid())

    def end_process(self) -> None:
        """Once it has begun. Nobody has waited for it yet, so that its number is its own."""
        (number,) = _PROCESS.unpack_from(self._memory, _COUNTS.size)
        if number:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def read(self) -> Counts:
        return Counts(*_COUNTS.unpack_from(self._memory, 0))


@contextlib.contextmanager
def said(runs: Sequence[Progress], steps: int, first: float = _FIRST) -> Iterator[None]:
    """A line on stderr now and then, so that a script that never trains is not waited for in the
    dark. `steps`: how many each run is to see."""
    over = threading.Event()

    def speak() -> None:
        begun, pause = time.monotonic(), first
        while not over.wait(pause):
            slowest = min(progress.read() for progress in runs)
            print(_sentence(slowest, steps, time.monotonic() - begun), file=sys.stderr, flush=True)
            pause = _EVERY

    thread = threading.Thread(target=speak, name="plimsoll", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _sentence(counts: Counts, steps: int, seconds: float) -> str:
    if not counts.operators:
        seen = "it has put nothing on the GPU yet"
    elif counts.beyond:
        seen = f"what comes after its training steps is followed, {counts.operators:,} operators"
    else:
        wanted = f"{steps}" if steps <= STEPS else f"at most {steps}"
        seen = f"{counts.steps} of {wanted} training steps, {counts.operators:,} operators"
    return f"plimsoll: the script has run for {seconds:.0f} s: {seen}. Ctrl-C ends it"
