"""Whether more samples take less memory, and the event at which they do."""

from __future__ import annotations

import csv
import io

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


def falls(program: Program, asked: Asked, small: Answer, large: Answer) -> list[Contradiction]:
    """Allocated without workspaces never falls. Reserved may, by two segments."""
    one, other = small.document, large.document
    unlimited = "unlimited"
    allocated = [document[unlimited]["allocated"]["best"] for document in (one, other)]
    reserved = [document[unlimited]["reserved"]["best"] for document in (one, other)]
    found: list[Contradiction] = []
    if allocated[1] < allocated[0]:
        peaks = [without_workspaces(program, asked, document["batch"]) for document in (one, other)]
        if peaks[1][0] < peaks[0][0]:
            found += compare(
                "a larger batch takes less", small, large, [("allocated", peaks[0][0], peaks[1][0])]
            )
            found[-1].remark = f"peak at {peaks[0][1]}; at {peaks[1][1]}"
    largest = (
        max(SEGMENT, largest_request(program, asked, one["batch"]))
        if reserved[1] < reserved[0]
        else 0
    )
    if reserved[0] - reserved[1] > 2 * largest:
        found += compare("a larger batch reserves less", small, large, [("reserved", *reserved)])
        found[-1].remark = f"peak at {one['instant']}; at {other['instant']}"
    return found


def largest_request(program: Program, asked: Asked, batch: int) -> int:
    """A request of 10 MiB and more has a segment of its own, in whole MiB."""
    events = program.ask(*asked.words, "--batch", batch, "--events")
    return max(
        (int(row["bytes"]) for row in csv.DictReader(io.StringIO(events.out))), default=0
    ) + (2 << 20)
