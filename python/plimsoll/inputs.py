"""Whether the batches that a script's steps were given are like those it will train with."""

from __future__ import annotations

from .merge import Run
from .recorder import Tensor

Shape = tuple[int, ...]


def changing_sizes(first: Run, second: Run, batches: tuple[int, int]) -> list[str]:
    """Notes on sizes that the data decide."""
    small, large = _by_step(first), _by_step(second)
    notes = []
    told = sorted({shapes[0] for shapes in small if shapes})
    if len({tuple(shapes) for shapes in small if shapes}) > 1:
        seen = f": {', '.join(map(_shown, told))} at batch {batches[0]}" if len(told) > 1 else ""
        notes.append(
            f"the batches that were seen are of different sizes{seen}; a larger one takes more "
            "(data that are all as long as the longest give the most)"
        )
    for a, b in zip(small, large):
        for one, other in zip(a, b):
            pairs = list(zip(one, other))
            odd = [pair for pair in pairs if not _in_proportion(pair, batches)]
            if odd:
                x, y = odd[0]
                notes.append(
                    f"a size of a batch is {x} at batch {batches[0]} and {y} at batch "
                    f"{batches[1]}, as the data are; other batch sizes are told as if it grew so"
                )
                return notes
    return notes


def _in_proportion(pair: tuple[int, int], batches: tuple[int, int]) -> bool:
    return pair[0] == pair[1] or pair[0] * batches[1] == pair[1] * batches[0]


def _shown(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "1"


def _by_step(run: Run) -> list[list[Shape]]:
    """The shapes of what each step was given."""
    steps: list[list[Shape]] = []
    shapes: dict[int, Shape] = {}
    for event in run.events:
        if event[0] == "step":
            steps.append([])
        elif event[0] == "call":
            made: list[Tensor] = event[7]
            shapes.update({tensor.storage: run.layouts[tensor.layout][1] for tensor in made})
        elif event[:2] == ["label", "input"] and steps:
            steps[-1] += [shapes[number] for number in event[2] if number in shapes]
    return steps
