"""A script at the batch that is asked about: where it does there otherwise than at two small
batches, it is captured there. One that renders its batch in chunks of a thousand does."""

from __future__ import annotations

from typing import Callable, Protocol

from ..base.errors import CaptureError
from ..events.agreement import check_agreement
from ..events.merge import merged_steps
from ..events.points import Points
from ..events.step_file import Tables
from .run import NotFollowed, Run, RunResult


class Follow(Protocol):
    def __call__(self, runs: list[Run], shows_error: bool) -> list[RunResult]:
        """A CaptureError where one cannot be followed."""


def at_asked(
    follow: Follow,
    runs_at: Callable[[Points], list[Run]],
    results: list[RunResult],
    points: Points,
    asked: int,
) -> tuple[list[RunResult], Points]:
    """The two runs that the answer is made of, and their batches. `results`, `points`: two runs
    with other batches."""
    if (asked,) in points.at or asked < 1:
        return results, points
    near = Points.of_batches((asked - 1, asked) if asked > 1 else (1, 2))
    try:
        there = follow([runs_at(near)[near.at.index((asked,))]], False)[0]
    except CaptureError as error:
        results[0].notes.append(f"at batch {asked} the script cannot be followed: {error.what}")
        return results, points
    try:
        all_points = Points(points.dimensions, (*points.at, (asked,)))
        check_agreement([run.recorded for run in (*results, there)], all_points)
    except CaptureError as parting:
        few, many = points.batches
        what = f"at batch {asked} the script does otherwise than at {few} and {many}"
        found = _captured_near(follow, runs_at, near)
        if found is None:
            results[0].not_followed.append(NotFollowed.at(parting.where or "", what))
            return results, points
        few, many = found[1].batches
        where = f"{parting.where}: " if parting.where else ""
        found[0][0].notes.append(
            f"{where}{what}; it was captured at {few} and {many}, and may differ again at others"
        )
        return found
    return results, points


def _captured_near(
    follow: Follow, runs_at: Callable[[Points], list[Run]], near: Points
) -> tuple[list[RunResult], Points] | None:
    """At two batches at which the script does the same, one of them asked about."""
    _, many = near.batches
    for points in dict.fromkeys([near, Points.of_batches((max(many // 2, 1), many))]):
        try:
            results = follow(runs_at(points), False)
            recorded = [run.recorded for run in results]
            merged_steps(recorded, Tables(), points)
        except CaptureError:
            continue
        if recorded[0].layouts != recorded[1].layouts:
            return results, points
    return None
