"""An epoch's sizes beside the steps that were captured: by them those that were not are known."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..events.sequence import FIRST, Sequence
from .data_sizes import EpochSizes, Shapes

#: Steps that go through the allocator.
_MOST_PLAYED = 2000


def data_section(data: EpochSizes, sequence: Sequence, passes: int) -> dict[str, Any]:
    """Of the step file. The sequence goes on with the batches that were not captured."""
    steps = list(sequence.steps)
    places = _places(data, sequence) if passes == 1 else None
    if places is not None:
        for index in range(FIRST + len(steps), min(len(data.order), _MOST_PLAYED)):
            steps.append(_extent(data.shapes[data.order[index]], places))
        heaviest = -data.heaviest[0].place
        if heaviest >= FIRST + len(steps):
            steps.append(_extent(data.shapes[data.order[heaviest]], places))
    counts = Counter(data.order)
    return {
        "sequence": steps,
        "data": {
            "batches": len(data.order),
            "complete": data.complete,
            "shapes": [
                [counts[index], [list(shape) for shape in shapes]]
                for index, shapes in enumerate(data.shapes)
            ],
            "heaviest": [
                {
                    "batch": -heavy.place,
                    "elements": heavy.weight,
                    "samples": heavy.samples,
                    "shapes": [list(s) for s in data.shapes[data.order[-heavy.place]]],
                }
                for heavy in data.heaviest
            ],
            "lengths": [list(pair) for pair in sorted(data.lengths.items())],
        },
    }


def _places(data: EpochSizes, sequence: Sequence) -> list[tuple[int, int]] | None:
    """For each dimension the tensor of a batch and its dimension that have the same sizes in all
    steps that were captured."""
    captured = [data.shapes[i] for i in data.order[FIRST : FIRST + len(sequence.steps)]]
    extents = [
        sequence.points[step] if isinstance(step, int) else step for step in sequence.steps
    ][: len(captured)]
    if not captured or len({tuple(map(len, shapes)) for shapes in captured}) > 1:
        return None
    ranks = [len(shape) for shape in captured[0]]
    candidates = [(tensor, d) for tensor, rank in enumerate(ranks) for d in range(rank)]
    found = []
    for dimension in range(len(extents[0])):
        wanted = [extent[dimension] for extent in extents]
        same = (p for p in candidates if [s[p[0]][p[1]] for s in captured] == wanted)
        place = next(same, None)
        if place is None:
            return None
        found.append(place)
    return found


def _extent(shapes: Shapes, places: list[tuple[int, int]]) -> list[int]:
    return [max(1, shapes[tensor][dimension]) for tensor, dimension in places]
