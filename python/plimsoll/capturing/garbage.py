"""Python's own collector of reference cycles, which would free tensors whenever it likes."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator

from ..base.notes import Note
from ..events.recorder import Recorder

_is_frozen = False


def freeze() -> None:
    """For as long as this process lives."""
    global _is_frozen
    gc.collect()
    gc.freeze()
    _is_frozen = True


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Cycles are collected whenever Python likes; the two runs have to agree on when ."""
    enabled = gc.isenabled()
    gc.collect()
    # What is there already need not be looked through again after every step. What is frozen is
    # counted one by one.
    freezes = not _is_frozen and gc.get_freeze_count() == 0
    if freezes:
        gc.freeze()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # Said of fake tensors and of the device that is not there, and no news to the user.
            warnings.filterwarnings("ignore", message=".*(CUDA|cuda|lr_scheduler|non-leaf).*")
            yield
    finally:
        if freezes:
            gc.unfreeze()
        if enabled:
            gc.enable()


def collect_after_step(recorder: Recorder, note: Note) -> None:
    """At the same instant in every run: when a step is over."""
    before = len(recorder.events)
    gc.collect()
    freed = len(recorder.events) - before
    if freed:
        note(
            f"{freed} tensors of a step are in reference cycles and were let go at its end; "
            "when Python does that is not fixed"
        )
