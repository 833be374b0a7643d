"""Whether the batches that a script's steps were given are like those it will train with."""

from __future__ import annotations

from typing import Any

from .event import Call, Label, Recorded, StepBegin, Tensor

Shape = tuple[Any, ...]
#: Of different sizes, so many are listed.
_SHOWN = 6


def changing_sizes(first: Recorded, second: Recorded, batches: tuple[int, int]) -> list[str]:
    """Notes on sizes that the data decide."""
    small, large = shapes_by_step(first), shapes_by_step(second)
    notes = []
    widest = max((len(shape) for shapes in small for shape in shapes), default=0)
    seen = sorted({shape for shapes in small for shape in shapes if len(shape) == widest})
    if len(seen) > 1 and _differ(small, _moved_in_first_step(first)):
        some = ", ".join(map(_shown, seen[:_SHOWN])) + (", …" if len(seen) > _SHOWN else "")
        notes.append(
            f"the batches that were seen are of different sizes ({some} at batch {batches[0]}), as "
            "the data are; one with a longer sample takes more, and a larger batch is likelier to "
            "have one: --batches N,M near the batch that you ask for sees more of them"
        )
    if not _grow(small, large, batches):
        notes.append(
            f"at batch {batches[1]} the batches have other sizes than at {batches[0]} besides the "
            "number of samples, as the data are; other batch sizes are predicted as if these sizes "
            "grew with the batch"
        )
    return notes


def _differ(steps: list[list[Shape]], moved_in_first: set[Shape]) -> bool:
    """How many inputs of a size there are is another matter. The first step may have others before
    its own: a check of the validation, what is fetched ahead."""
    first, *others = [set(shapes) for shapes in steps if shapes]
    if not others:
        return False
    is_alike = first == others[0] or moved_in_first >= others[0]
    return not is_alike or any(shapes != others[0] for shapes in others)


def _moved_in_first_step(run: Recorded) -> set[Shape]:
    """The shapes of all that came from the host, in whichever phase."""
    begins = [at for at, event in enumerate(run.events) if isinstance(event, StepBegin)]
    begin, end = [*begins, len(run.events)][:2]
    return {
        run.layouts[event.results[0].layout].sizes
        for event in run.events[begin:end]
        if isinstance(event, Call) and event.op == "aten._to_copy.default"
        if isinstance(event.args[0], Tensor) and not event.args[0].storage
    }


def _grow(small: list[list[Shape]], large: list[list[Shape]], batches: tuple[int, int]) -> bool:
    """Whether nothing but the number of samples differs."""
    pairs = [
        pair for a, b in zip(small, large) for one, other in zip(a, b) for pair in zip(one, other)
    ]
    return all(_in_proportion(pair, batches) for pair in pairs)


def _in_proportion(pair: tuple[int, int], batches: tuple[int, int]) -> bool:
    return pair[0] == pair[1] or pair[0] * batches[1] == pair[1] * batches[0]


def _shown(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "1"


def shapes_by_step(run: Recorded) -> list[list[Shape]]:
    """The shapes of what each step was given."""
    steps: list[list[Shape]] = []
    shapes: dict[int, Shape] = {}
    for event in run.events:
        if isinstance(event, StepBegin):
            steps.append([])
        elif isinstance(event, Call):
            made = event.results
            shapes.update({tensor.storage: run.layouts[tensor.layout].sizes for tensor in made})
        elif isinstance(event, Label) and event.category == "input" and steps:
            steps[-1] += [shapes[number] for number in event.storages if number in shapes]
    return steps
