"""Convolutions over a wide range of shapes, each direction by itself: what time_operators.py times.

The shapes of a kind are the same for every type and memory format, so that these can be compared.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

Step = Callable[[], None]

KINDS = ("plain", "dilated", "grouped", "depthwise")
FORMATS = ("nchw", "nhwc", "mixed")
_PLANES = (4, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224)
_CHANNELS = (16, 24, 32, 40, 48, 64, 72, 96, 128, 144, 192, 240, 256, 320, 384, 512, 672, 768, 1024)
_IMAGES = (1, 2, 4, 8, 12, 16, 32, 48, 64, 128)
_CASES = 140


@dataclasses.dataclass(frozen=True)
class Shape:
    images: int
    channels: int
    plane: int
    made: int
    kernel: int
    stride: int
    dilation: int
    groups: int

    @property
    def padding(self) -> int:
        return self.dilation * (self.kernel // 2)

    @property
    def after(self) -> int:
        reach = self.dilation * (self.kernel - 1)
        return (self.plane + 2 * self.padding - reach - 1) // self.stride + 1

    @property
    def elements(self) -> int:
        """Of the larger of input and output."""
        return self.images * max(self.channels * self.plane**2, self.made * self.after**2)

    @property
    def flops(self) -> float:
        inner = self.channels // self.groups * self.kernel**2
        return 2.0 * self.images * self.after**2 * self.made * inner


def _drawn(kind: str, chosen: random.Random) -> Shape:
    channels, made, groups, dilation = chosen.choice(_CHANNELS), chosen.choice(_CHANNELS), 1, 1
    kernel, stride = 3, chosen.choice([1, 1, 1, 2])
    if kind == "plain":
        kernel = chosen.choice([1, 1, 1, 3, 3, 3, 3, 5, 7, 2, 4])
        made = chosen.choice([made, made, channels, 2048])
    elif kind == "dilated":
        kernel, stride = chosen.choice([3, 3, 3, 3, 5, 7]), chosen.choice([1, 1, 1, 1, 1, 2])
        dilation = chosen.choice([2, 2, 3, 4, 4, 6, 8, 12, 18, 24])
        channels = chosen.choice([channels, channels, 2048])
    elif kind == "grouped":
        kernel = chosen.choice([1, 3, 3, 3, 3, 5, 7])
        groups = chosen.choice([2, 3, 4, 8, 14, 16, 32, 48])
        channels = groups * chosen.choice([4, 8, 16, 24, 32, 48, 64, 112, 128])
        made = channels * chosen.choice([1, 1, 1, 2])
    else:
        kernel, dilation = chosen.choice([3, 3, 3, 5, 5, 7, 7, 9]), chosen.choice([1] * 9 + [2])
        made = groups = channels
    images = chosen.choice(_IMAGES)
    plane = chosen.choice(_PLANES)
    return Shape(images, channels, plane, made, kernel, stride, dilation, groups)


def shapes(kind: str) -> Iterator[Shape]:
    chosen = random.Random(f"directions {kind}")
    # Kernels of one channel a group, and of odd groups, can be a hundred times slower.
    elements, flops = (6e7, 1e11) if kind in ("grouped", "depthwise") else (1e8, 5e11)
    count = 0
    while count < _CASES:
        shape = _drawn(kind, chosen)
        if shape.channels > 2048 or shape.plane <= shape.padding:
            continue
        if not 1e5 < shape.elements < elements or shape.flops > flops:
            continue
        count += 1
        yield shape


def directions(kind: str, layout: str, dtype: torch.dtype, device: str = "cuda") -> Iterator[Step]:
    """In "mixed", weights are channels-last and the data is not, as behind a group norm."""
    of_weights = torch.contiguous_format if layout == "nchw" else torch.channels_last
    of_data = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    for shape in shapes(kind):

        def run(s: Shape = shape) -> None:
            x = torch.randn(s.images, s.channels, s.plane, s.plane, device=device, dtype=dtype)
            x = x.to(memory_format=of_data)
            w = torch.randn(
                s.made, s.channels // s.groups, s.kernel, s.kernel, device=device, dtype=dtype
            ).to(memory_format=of_weights)
            y = F.conv2d(x, w, None, s.stride, s.padding, s.dilation, s.groups)
            for wanted in ([True, False, False], [False, True, False]):
                torch.ops.aten.convolution_backward(
                    y, x, w, [0], [s.stride] * 2, [s.padding] * 2, [s.dilation] * 2,
                    False, [0, 0], s.groups, wanted,
                )  # fmt: skip

        yield run


def group_norms(dtype: torch.dtype, device: str = "cuda") -> Iterator[Step]:
    chosen = random.Random("group norms")
    count = 0
    while count < 60:
        channels = chosen.choice([32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1280])
        groups = chosen.choice([g for g in (1, 8, 16, 32, 32, channels) if channels % g == 0])
        images, plane = chosen.choice(_IMAGES), chosen.choice(_PLANES)
        if not 1e5 < images * channels * plane**2 < 1e8:
            continue
        count += 1

        def run(
            images: int = images, channels: int = channels, plane: int = plane, groups: int = groups
        ) -> None:
            w = torch.ones(channels, device=device, dtype=dtype, requires_grad=True)
            b = torch.zeros_like(w).requires_grad_()
            for layout in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(images, channels, plane, plane, device=device, dtype=dtype)
                x = x.to(memory_format=layout).requires_grad_()
                y = F.group_norm(x, groups, w, b)
                y.backward(torch.ones_like(y))

        yield run
