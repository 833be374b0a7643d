"""What is to be asked of cuDNN about a captured job: each distinct convolution, the directions in
which it runs, and the batches at which to ask."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .backend import Query
from .shapes import Convolution, Layout, shape_of

#: In the order of a line's cells.
DIRECTIONS = ("forward", "backward_data", "backward_weight")
#: Batches of a job that are tried in practice. Between two of them an engine may change unseen, so
#: they are never more than a half apart.
LADDER = (
    1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512,
    640, 768, 1024, 1536, 2048, 3072, 4096,
)  # fmt: skip
_CONVOLVED = ("float32", "bfloat16", "float16")


class Place(NamedTuple):
    """Where a convolution was seen: the job's batch, and its own first size there."""

    batch: int
    own: int


class Asked(NamedTuple):
    """A convolution of the job."""

    how: Convolution
    #: Those of DIRECTIONS that the job runs.
    directions: set[str]
    places: set[Place]

    @property
    def key(self) -> str:
        return key_of(self.how)

    def own_batches(self, batches: Sequence[int]) -> Iterator[int]:
        """Its own first sizes at these batches of the job, as far as they grow with the batch: an
        evaluation may take twice as many samples as a step."""
        captured = {place.batch for place in self.places}
        by_batch = [{p.own / p.batch for p in self.places if p.batch == n} for n in captured]
        for batch in batches:
            sizes = (ratio * batch for ratio in set.intersection(*by_batch))
            yield from sorted(int(size) for size in sizes if size >= 1 and size.is_integer())


def key_of(how: Convolution) -> str:
    """As the reader looks it up. Of a volume all three sizes are told (VolumeKey in
    src/job/rules/workspace_lookup.cc)."""
    if len(how.weight) != 5:
        return how.shape.key
    stride, padding, dilation, transposed, _, groups = how.settings
    channels = how.weight[1] * groups if transposed else how.weight[0]
    words = [how.shape.dtype, "ncdhw", _commas(how.input), _commas((channels, *how.weight[2:]))]
    words += [_commas(_full(setting, 3)) for setting in (stride, padding, dilation)]
    return " ".join([*words, str(groups)]) + (" transposed" if transposed else "")


def _commas(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _full(setting: Sequence[int], dimensions: int) -> tuple[int, ...]:
    """One entry holds for all dimensions."""
    return tuple(setting) if len(setting) == dimensions else (setting[0],) * dimensions


def is_depthwise(how: Convolution) -> bool:
    """PyTorch has kernels of its own for most of these: which it takes is not cuDNN's choice."""
    transposed, groups = how.settings[3], how.settings[5]
    few, many = how.input[0], how.weight[1] * groups if transposed else how.weight[0]
    if transposed:
        few, many = many, few
    return groups > 1 and groups == few and many % few == 0


def query_of(how: Convolution, batch: int, direction: str) -> Query | None:
    """As PyTorch puts it to cuDNN: one dimension as two, a transposed one as the gradient of the
    ordinary one that it is. Nothing where no output is left."""
    stride, padding, dilation, transposed, more, groups = how.settings
    spatial, kernel = list(how.input[1:]), list(how.weight[2:])
    settings = [list(_full(s, len(spatial))) for s in (stride, padding, dilation, more or (0,))]
    if len(spatial) == 1:
        spatial, kernel = [1, *spatial], [1, *kernel]
        settings = [[one, *s] for one, s in zip((1, 0, 1, 0), settings)]
    strides, paddings, dilations, mores = settings
    out = [
        (n - 1) * s - 2 * p + d * (k - 1) + m + 1
        if transposed
        else (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d, m in zip(spatial, kernel, strides, paddings, dilations, mores)
    ]
    if min(out) < 1:
        return None
    channels = how.weight[1] * groups if transposed else how.weight[0]
    x, y = (batch, how.input[0], *spatial), (batch, channels, *out)
    if transposed:
        x, y = y, x
        exchanged = {"forward": "backward_data", "backward_data": "forward"}
        direction = exchanged.get(direction, direction)
    weight = (*how.weight[:2], *kernel)
    return Query(
        how.shape.dtype, bool(how.shape.channels_last), direction, x, weight, y,
        tuple(strides), tuple(paddings), tuple(dilations),
    )  # fmt: skip


def collect(document: dict[str, Any]) -> dict[str, Asked]:
    """By key, in all variants of a step file's document."""
    found: dict[str, Asked] = {}
    strings, points = document["strings"], _Points(document)
    seen = set()
    for event in _calls(document):
        op = strings[event[1]]
        backward = op.startswith("aten.convolution_backward.")
        if not backward and not op.startswith("aten.convolution."):
            continue
        args = event[5]
        first = 1 if backward else 0
        mask = args[10] if backward else None
        settings = args[4:10] if backward else args[3:9]
        layouts = tuple(args[i]["t"][1] for i in (first, first + 1))
        told = (layouts, repr(settings), repr(mask))
        if told in seen:
            continue
        seen.add(told)
        directions = _directions(mask)
        for point in range(points.count):
            input, weight = (points.layout(index, point) for index in layouts)
            how = _convolution(input, weight, [points.value(s, point) for s in settings])
            if how is None:
                continue
            asked = found.setdefault(key_of(how), Asked(how, set(), set()))
            asked.directions.update(directions)
            asked.places.add(Place(points.batch(point), input.sizes[0]))
    return found


def _directions(mask: Any) -> set[str]:
    if mask is None:
        return {DIRECTIONS[0]}
    return {name for name, wanted in zip(DIRECTIONS[1:], mask) if wanted}


def _convolution(input: Layout, weight: Layout, settings: list[Any]) -> Convolution | None:
    if input.dtype not in _CONVOLVED or len(input.sizes) not in (3, 4, 5):
        return None
    if min(*input.sizes, *weight.sizes) < 1 or len(input.sizes) != len(weight.sizes):
        return None
    how = Convolution(
        shape_of(input, weight, settings), input.sizes[1:], weight.sizes, tuple(settings)
    )
    return None if is_depthwise(how) else how


def _calls(document: dict[str, Any]) -> Iterator[list[Any]]:
    events = itertools.chain.from_iterable(v["events"] for v in document["variants"])
    return (event for event in events if event[0] == "call")


class _Points:
    """The numbers of a step at the points of its capture, which are two batches or more."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._layouts = document["layouts"]
        self._numbers = document.get("numbers")
        self._batches = [p[0] for p in document.get("points", ())] or document["batches"]

    @property
    def count(self) -> int:
        return len(self._batches)

    def batch(self, point: int) -> int:
        return int(self._batches[point])

    def number(self, number: Any, point: int) -> int:
        if not isinstance(number, list):
            return int(number)
        values = number if self._numbers is None else self._numbers[number[0]]
        return int(values[point])

    def layout(self, index: int, point: int) -> Layout:
        dtype, sizes, strides = self._layouts[index]
        return Layout(
            dtype,
            tuple(self.number(size, point) for size in sizes),
            tuple(self.number(stride, point) for stride in strides),
        )

    def value(self, value: Any, point: int) -> Any:
        if isinstance(value, list):
            return tuple(self.value(element, point) for element in value)
        return self.number(value["n"], point) if isinstance(value, dict) else value


def step_outputs(document: dict[str, Any]) -> float:
    """Bytes for each of the batch that the convolutions of a step leave behind, about."""
    points, strings, total = _Points(document), document["strings"], 0.0
    steps = 0
    for event in document["variants"][0]["events"]:
        steps += event[0] == "step"
        if event[0] != "call" or not strings[event[1]].startswith("aten.convolution."):
            continue
        total += sum(points.number(made[1], 0) for made in event[8]) / points.batch(0)
    return total / max(steps, 1)
