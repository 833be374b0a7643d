"""Convolutions without their batch, as a calibration and a step file name them, and what they take
at some batches: docs/formats/calibration.md. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Point = tuple[int, int]  # a batch, and bytes


class Shape(NamedTuple):
    """A convolution without its batch, as the reader tells them apart."""

    dtype: str
    channels_last: int
    # c, h, w, k, kh, kw, then stride, padding and dilation by height and width, and groups.
    sizes: tuple[int, ...]
    transposed: int

    @property
    def key(self) -> str:
        """As FoldedKey in src/job/rules/workspace_lookup.cc builds it."""
        c, h, w, k, kh, kw, sh, sw, ph, pw, dh, dw, groups = self.sizes
        layout = "nhwc" if self.channels_last else "nchw"
        text = f"{self.dtype} {layout} {c},{h},{w} {k},{kh},{kw} {sh},{sw} {ph},{pw} {dh},{dw}"
        return f"{text} {groups}" + (" transposed" if self.transposed else "")


class Layout(NamedTuple):
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    needs_grad: bool = False

    def __str__(self) -> str:
        return f"{_commas(self.sizes)}:{_commas(self.strides)}"


def _commas(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


class Convolution(NamedTuple):
    """How to run a convolution, at any batch."""

    shape: Shape
    input: tuple[int, ...]  # without the batch
    weight: tuple[int, ...]
    settings: tuple[Any, ...]  # stride, padding, dilation, transposed, output_padding, groups


def shape_of(input: Layout, weight: Layout, settings: Sequence[Any]) -> Shape:
    """As ShapeOf in src/job/rules/convolution.cc: one dimension is two with a height of 1, and of
    three the depth goes to the height."""
    stride, padding, dilation, transposed, _, groups = settings
    h = w = kh = kw = 1
    *heights, w = input.sizes[2:]
    *kernel_heights, kw = weight.sizes[2:]
    for size, kernel in zip(heights, kernel_heights):
        h, kh = h * size, kh * kernel
    sizes = [input.sizes[1], h, w]
    sizes += [weight.sizes[1] * groups if transposed else weight.sizes[0], kh, kw]
    for setting, otherwise in ((stride, 1), (padding, 0), (dilation, 1)):
        full = setting if len(setting) == len(heights) + 1 else setting[:1] * (len(heights) + 1)
        sizes += [max((otherwise, *full[:-1])), full[-1]]
    channels_last = like_channels_last(input) or like_channels_last(weight)
    return Shape(input.dtype, int(channels_last), (*sizes, groups), int(transposed))


def like_channels_last(layout: Layout) -> bool:
    """As torch takes it: is_channels_last_strides_2d."""
    if len(layout.sizes) != 4 or layout.strides[1] == 0:
        return False
    least = 0
    for d in (1, 3, 2, 0):
        if layout.sizes[d] == 0 or layout.strides[d] < least:
            return False
        if d == 0 and least == layout.strides[1]:
            return False
        least = layout.strides[d] * max(layout.sizes[d], 1)
    return True


def reduced(points: Sequence[Point]) -> list[Point]:
    """Without those that lie on the line through their neighbours, to the byte: the reader puts
    them back."""
    kept, i = [points[0]], 0
    while i < len(points) - 1:
        j = len(points) - 1
        while j > i + 1 and not _on_line(points[i], points[i + 1 : j], points[j]):
            j -= 1
        kept.append(points[j])
        i = j
    return kept


def _on_line(a: Point, between: Sequence[Point], b: Point) -> bool:
    return all(a[1] + (p[0] - a[0]) * (b[1] - a[1]) // (b[0] - a[0]) == p[1] for p in between)


def cell(points: Sequence[Point]) -> str:
    """ "1:100 2:200", as a line has the bytes of one direction."""
    return " ".join(f"{n}:{size}" for n, size in reduced(points)) if points else ""
