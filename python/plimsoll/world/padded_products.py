"""Inductor times products whose rows are no multiple of 16 bytes, padded and as they are, and takes
the faster way. Here is how long both take, by what 330 of them took on an H200.

Tensor cores read aligned rows at two thirds of what the card's sheet says, and others at an eighth
to a quarter of that. What padding costs is the copy of an operand that nothing else writes anew
anyway; one that lies transposed is copied element by element.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..base.gpus import Gpu

#: Of the rate on the card's sheet.
_ALIGNED = 0.66
#: Rows of operands, and of the result, that begin at odd multiples of 2 bytes.
_AT_2_BYTES, _RESULT_AT_2_BYTES = 0.135, 0.088
_AT_4_BYTES_OR_8, _TF32_AT_4_BYTES_OR_8 = 0.207, 0.24
#: Copies: of the bandwidth; and of those that change the order, elements in a microsecond for each
#: GB/s of it, of 2 and of 4 bytes alike.
_COPY, _TRANSPOSE = 0.6, 29.0
_START_US = 6.0
#: What the host takes to issue a padded product, where the GPU takes less.
_ISSUED_US = 60.0
_ALIGNMENT = 16


class Timed(NamedTuple):
    """Microseconds."""

    as_it_is: float
    padded: float


class Operand(NamedTuple):
    rows: int
    columns: int
    #: Of the rows; else the columns lie in one piece.
    in_rows: bool
    #: Padding it costs nothing, since it is written anew anyway.
    free: bool

    def copied(self, item: int, bandwidth: float) -> float:
        if self.free:
            return 0.0
        elements = self.rows * self.columns
        if self.in_rows:
            return _START_US + 2e-3 * elements * item / (_COPY * bandwidth)
        return _START_US + elements / (_TRANSPOSE * bandwidth)


def operand(tensor: torch.Tensor, free: bool) -> Operand:
    rows, columns = tensor.shape[-2:]
    return Operand(int(rows), int(columns), tensor.stride(-1) == 1, free)


def timed(first: Operand, second: Operand, products: int, dtype: torch.dtype, card: Gpu) -> Timed:
    """`products`: of one batched product."""
    item = dtype.itemsize
    half = item == 2
    rate = card.half if half else card.tf32
    work = 2e-6 * products * first.rows * first.columns * second.columns
    steps = [
        _step(first.columns if first.in_rows else first.rows, item),
        _step(second.columns if second.in_rows else second.rows, item),
    ]
    share = min(_share(step, half) for step in steps)
    if _step(second.columns, item) == 2:
        share = min(share, _RESULT_AT_2_BYTES)
    elif _step(second.columns, item) < _ALIGNMENT:
        share = min(share, _share(4, half))
    copies = 0.0
    if first.rows * item % _ALIGNMENT or first.columns * item % _ALIGNMENT:
        copies += products * first.copied(item, card.bandwidth)
    if second.rows * item % _ALIGNMENT or second.columns * item % _ALIGNMENT:
        copies += products * second.copied(item, card.bandwidth)
    padded = _START_US + work / (_ALIGNED * rate) + copies
    return Timed(_START_US + work / (share * rate), max(padded, _ISSUED_US))


def _step(elements: int, item: int) -> int:
    """How many bytes the beginnings of all rows are multiples of, up to 16."""
    step = _ALIGNMENT
    while elements * item % step:
        step //= 2
    return step


def _share(step: int, half: bool) -> float:
    if step >= _ALIGNMENT:
        return _ALIGNED
    if not half:
        return _TF32_AT_4_BYTES_OR_8
    return _AT_2_BYTES if step == 2 else _AT_4_BYTES_OR_8
