"""Whether more samples take less memory, and the event at which they do."""

from __future__ import annotations

import csv
import io
from typing import Any

from contradictions import Contradiction, compare
from drawing import Asked
from program import Answer, Program

#: The allocator rounds a request up to 512 bytes, and small requests share segments of 2 MiB, others of 20 MiB.
ROUNDING = 512
SEGMENT = 20 << 20


def without_workspaces(program: Program, asked: Asked, batch: int) -> tuple[int, str]:
    """The peak of what is allocated but for workspaces, and the event at which it is reached."""
    events = program.ask(*asked.words, "--batch", batch, "--events")
    held = peak = 0
    at = ""
    for row in csv.DictReader(io.StringIO(events.out)):
        if row["category"] == "workspaces":
            continue
        size = -(-int(row["bytes"]) // ROUNDING) * ROUNDING
        held += size if row["action"] == "alloc" else -size
        if held > peak:
            peak = held
            at = f"step {row['step']}, {row['phase']}, {row['op']} {row['where']}, {size} bytes"
    return peak, at


def peaks_of(document: dict[str, Any]) -> tuple[int, int]:
    """Allocated and reserved at most: of a job beyond its steps those of the steps, since a loop
    over data has fewer whole batches if they are larger."""
    for stage in document.get("stages", []):
        if stage["stage"] == "step" and not stage["after_load"] and not stage["heaviest_batch"]:
            return stage["allocated"], stage["reserved"]
    unlimited = document["unlimited"]
    return unlimited["allocated"]["best"], unlimited["reserved"]["best"]


def falls(program: Program, asked: Asked, small: Answer, large: Answer) -> list[Contradiction]:
    """Allocated without workspaces never falls. Reserved may, by two segments."""
    one, other = small.document, large.document
    if not (one["fits"] and other["fits"]):
        # Within limits cached memory is given back.
        return []
    (allocated, reserved), (more_allocated, more_reserved) = peaks_of(one), peaks_of(other)
    found: list[Contradiction] = []
    if more_allocated < allocated and not one.get("stages"):
        peaks = [without_workspaces(program, asked, document["batch"]) for document in (one, other)]
        if peaks[1][0] < peaks[0][0]:
            figures = [("allocated", peaks[0][0], peaks[1][0])]
            found += compare("a larger batch takes less", small, large, figures)
            found[-1].remark = f"peak at {peaks[0][1]}; at {peaks[1][1]}"
    if reserved - more_reserved > 2 * SEGMENT:
        largest = largest_request(program, asked, one["batch"])
        if reserved - more_reserved > 2 * max(SEGMENT, largest):
            figures = [("reserved", reserved, more_reserved)]
            found += compare("a larger batch reserves less", small, large, figures)
            found[-1].remark = f"peak at {one['instant']}; at {other['instant']}"
    return found


def largest_request(program: Program, asked: Asked, batch: int) -> int:
    """A request of 10 MiB and more has a segment of its own, in whole MiB."""
    events = program.ask(*asked.words, "--batch", batch, "--events")
    return max(
        (int(row["bytes"]) for row in csv.DictReader(io.StringIO(events.out))), default=0
    ) + (2 << 20)
