"""Small memory snapshots with any names and sizes (docs/formats/snapshot.md)."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

BASE = 0x7F0000000000
MIB = 1 << 20


def frame(name: str, file: str = "/home/me/train.py", line: int = 1) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


class Run:
    """One device's events. Blocks lie one after the other in one segment, and can be freed."""

    def __init__(self, segment: int = 64 * MIB) -> None:
        self.events: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.next = BASE
        self._add("segment_alloc", BASE, segment, [frame("main")])

    def allocate(self, size: int, *frames: dict[str, Any]) -> int:
        """Returns the address; `frames` are innermost first."""
        address = self.next
        self.next += (size + 511) // 512 * 512
        self._add("alloc", address, size, list(frames) or [frame("main")])
        return address

    def free(self, address: int, size: int) -> None:
        for action in ("free_requested", "free_completed"):
            self._add(action, address, size, [])

    def mark(self, name: str, *, start: bool) -> None:
        """As record_function leaves it, between the last event and the next."""
        stage = "START" if start else "END"
        time = _time_of(len(self.events)) - 5
        self.marks.append({"name": name, "stage": stage, "device": 0, "time_us": time})

    def _add(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": _time_of(len(self.events)),
                "frames": frames,
            }
        )

    def write(self, path: Path | bytes) -> Path:
        return write(path, self.events, self.marks)


def _time_of(event: int) -> int:
    return 1_760_000_000_000_000 + 10 * event


def write(path: Path | bytes, events: list[dict[str, Any]], marks: list[dict[str, Any]] | None = None) -> Path:
    """`path` may be bytes, for a name that is no UTF-8."""
    snapshot: dict[str, Any] = {"segments": [], "device_traces": [events]}
    if marks:
        snapshot["external_annotations"] = marks
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return Path(os.fsdecode(path))
