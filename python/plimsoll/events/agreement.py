"""Whether a run at one more batch does what two others let expect of it.

Two batches tell a job whose sizes grow with the batch. A script that cuts its batch into chunks of
a fixed size does not: at a larger batch it has more of them.
"""

from __future__ import annotations

from ..base.errors import CaptureError
from .event import Call, Recorded, Varying
from .merge import merged_steps
from .points import Points
from .step_file import Tables

#: Of a tensor's bytes: what is selected is rounded, workspaces and statistics have steps.
_OFF = 0.005
_OFF_BYTES = 4096


class Parting(CaptureError):
    """Where a run does otherwise."""


def check_agreement(runs: list[Recorded], points: Points) -> None:
    """In its steps. `points`: two, and the one of the run that is looked at; raises a Parting."""
    try:
        events = merged_steps(runs, Tables(inline=False), points)
    except CaptureError as error:
        raise Parting(error.what, where=error.where) from None
    few, many, asked = (batch for (batch,) in points.at)
    for event in events:
        for new in event.made if isinstance(event, Call) else []:
            if not isinstance(new.size, Varying):
                continue
            first, second, there = new.size
            expected = first + (second - first) * (asked - few) / (many - few)
            if abs(there - expected) > max(_OFF * there, _OFF_BYTES):
                raise Parting(
                    f"a tensor has {there:,} bytes at {points.described(2)}, and not "
                    f"{round(expected):,} as its size at {points.described(0)} and "
                    f"{points.described(1)} says",
                    where=event.place.where,  # type: ignore[union-attr]
                )
