"""What cuDNN cannot know without a driver, put right.

Hopper's kernels give the tiles of the last, incomplete wave to several clusters of thread blocks
each, which keep partial sums in fp32: one tile a block. How many clusters a card holds at once
cuDNN asks the driver; without one it counts with 18 multiprocessors, whatever the device is said to
have. The plan itself is the same, so what it counted is taken off and what the card has is put in
its place.

How a tile's sum is split is cuDNN's own decision. Its form was found by asking it: plans of one
engine for 1 to 18 multiprocessors, over lengths of the sum, tiles, waves and types. All constants
here are from those answers, none from measured workspaces, which were used to check it.
"""

from __future__ import annotations

import math

from .backend import Plan, Query
from .cards import Card, clusters_of

#: What cuDNN takes a card for.
_ASSUMED_MULTIPROCESSORS = 18

# Knobs of a configuration, by cudnn_graph.h's numbers.
_TILE, _WORKSPACE, _CLUSTER_ROWS, _CLUSTER_COLUMNS = 2, 25, 27, 28

#: Rows and columns of a block's tile, by the value of the knob.
_TILES = {
    0: (128, 128), 1: (128, 64), 2: (128, 32), 3: (256, 128), 4: (256, 64), 5: (64, 64),
    6: (128, 256), 7: (64, 128), 9: (64, 256), 16: (256, 32), 18: (64, 192), 20: (128, 192),
}  # fmt: skip
#: Of the sum, in one step: 128 bytes.
_STEP = {"float32": 32, "bfloat16": 64, "float16": 64}
#: So many steps of bf16 are as long as one of these, for cuDNN.
_SLOWNESS = {"bfloat16": 1, "float32": 4, "float16": 8}
#: Steps of bf16 that it counts for adding partial tiles pairwise, a level of pairs: always, and for
#: a tile of 64 x 64 (less for larger ones, whose steps take longer).
_LEVEL, _LEVEL_OF_SMALLEST, _SMALLEST = 36.7, 63.2, 64 * 64
#: Once, where whole waves go before.
_BEHIND_WAVES = 27.0
#: From so many parts on another kernel adds them up; each part is longer than this much of the sum.
_MANY, _LONGER_THAN = 9, 1024
_SUM_BYTES = 4


def recounted(query: Query, plan: Plan, card: Card) -> int | None:
    """Bytes on this card. Nothing where they are not cuDNN's to tell."""
    if by_cublas(plan):
        # cuBLASLt splits long sums too, and its choice is nowhere to be asked.
        return None if _is_long_product(query) and plan.knobs[_WORKSPACE] else plan.workspace
    rows = plan.knobs.get(_CLUSTER_ROWS, 0)
    columns = plan.knobs.get(_CLUSTER_COLUMNS, 0)
    tile = _TILES.get(plan.knobs.get(_TILE, -1))
    at_once = clusters_of(card, rows * columns)
    keeps = plan.knobs.get(_WORKSPACE) == 0
    if not keeps or tile is None or at_once is None or _is_grouped(query):
        return plan.workspace
    tiles, steps = _work(query, tile, rows, columns)
    assumed = max(1, _ASSUMED_MULTIPROCESSORS // (rows * columns))
    more = _kept(query.dtype, tile, tiles, steps, at_once)
    less = _kept(query.dtype, tile, tiles, steps, assumed)
    size = rows * columns * tile[0] * tile[1] * _SUM_BYTES
    return max(0, plan.workspace + (more - less) * size)


def by_cublas(plan: Plan) -> bool:
    """Its engines have that one knob."""
    return set(plan.knobs) == {_WORKSPACE}


def _is_long_product(query: Query) -> bool:
    """The gradient of a weight as one product over all pixels; the channels come last, else it is a
    product for each image."""
    return query.direction == "backward_weight" and query.channels_last


def _is_grouped(query: Query) -> bool:
    return query.input[1] != query.weight[1]


def _work(query: Query, tile: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Tiles of a cluster, and the steps of each."""
    step = _STEP[query.dtype]
    taps = math.prod(query.weight[2:])
    if query.direction == "backward_weight":
        down, across = _up(query.output[1], tile[0]), _up(query.input[1], tile[1]) * taps
        steps = _up(query.output[0] * math.prod(query.output[2:]), step)
        phases = 1
    elif query.direction == "forward":
        pixels = query.output[0] * math.prod(query.output[2:])
        down, across = _up(pixels, tile[0]), _up(query.output[1], tile[1])
        steps = _up(query.input[1], step) * taps
        phases = 1
    else:  # with strides, each of the phases has a share of the taps
        sides = (_up(side, stride) for side, stride in zip(query.input[2:], query.stride))
        down = _up(query.input[0] * math.prod(sides), tile[0])
        across = _up(query.input[1], tile[1])
        phases = math.prod(query.stride)
        steps = max(1, _up(query.output[1], step) * taps // phases)
    return _up(down, rows) * _up(across, columns) * phases, steps


def _kept(dtype: str, tile: tuple[int, int], tiles: int, steps: int, at_once: int) -> int:
    """Partial tiles of all clusters in the last wave."""
    waves, rest = divmod(tiles, at_once)
    if not rest:
        return 0
    parts = _parts(dtype, tile, steps, at_once // rest, bool(waves))
    return rest * parts if parts > 1 else 0


def _parts(dtype: str, tile: tuple[int, int], steps: int, most: int, behind_waves: bool) -> int:
    """Into how many parts, of at most so many, the sum of a tile is split."""
    fewest_steps = _LONGER_THAN // _STEP[dtype] + 1
    if not behind_waves and min(most, steps // fewest_steps) >= _MANY:
        return _rounded(steps, min(most, steps // fewest_steps))
    level = _LEVEL + _LEVEL_OF_SMALLEST * _SMALLEST / (tile[0] * tile[1])
    slowness = _SLOWNESS[dtype]
    parts, levels = 1, 1
    while parts < most:
        next_parts = min(2**levels, most)
        saved = _up(steps, parts) - _up(steps, next_parts)
        if behind_waves:
            worth = steps + saved > (_BEHIND_WAVES + level * levels) / slowness
        else:
            worth = saved > level / slowness
        if not worth:
            break
        parts, levels = next_parts, levels + 1
    return _rounded(steps, parts)


def _rounded(steps: int, parts: int) -> int:
    """Parts are of whole steps, all alike but the last."""
    return _up(steps, _up(steps, parts))


def _up(a: int, b: int) -> int:
    return -(-a // b)
