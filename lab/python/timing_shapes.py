# ruff: noqa: E501 (tables)
"""Shapes that timing_jobs.py has few of: convolutions in groups, over volumes and signals, what
windows of attention do to a picture, norms and reductions of other forms, recurrent layers.

A chunk is a few cases of one kind, type and memory format. Chunks come in an order of their own, so
that a run that is stopped has some of every kind. time_shapes.py times them.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Case = Callable[[], None]

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CASES = 24
#: Of the larger of input and output; made small where there is no GPU.
LIMITS = {"elements": 1.2e8, "flops": 4e11, "least": 2e5}


class Drawn:
    """Random tensors without kernels that make them: parts of one that was made before."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        count = int(2.2 * LIMITS["elements"])
        self.pool = torch.randn(count, device=device, dtype=dtype) * 0.5
        self.at = 0

    def tensor(self, *sizes: int, last: bool = False, grad: bool = False) -> torch.Tensor:
        count = math.prod(sizes)
        if self.at + count > self.pool.numel():
            self.at = 0
        flat = self.pool[self.at : self.at + count]
        self.at = (self.at + count + 255) // 256 * 256
        if last:
            made = flat.view(sizes[0], *sizes[2:], sizes[1])
            order = [0, len(sizes) - 1, *range(1, len(sizes) - 1)]
            made = made.permute(order)
        else:
            made = flat.view(sizes)
        return made.detach().requires_grad_() if grad else made


@dataclasses.dataclass(frozen=True)
class Convolution:
    images: int
    channels: int
    made: int
    plane: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    groups: int

    @property
    def padding(self) -> list[int]:
        return [k // 2 for k in self.kernel]

    @property
    def after(self) -> list[int]:
        return [
            (p + 2 * (k // 2) - k) // s + 1 for p, k, s in zip(self.plane, self.kernel, self.stride)
        ]

    @property
    def elements(self) -> int:
        before, after = math.prod(self.plane), math.prod(self.after)
        return self.images * max(self.channels * before, self.made * after)

    @property
    def flops(self) -> float:
        inner = self.channels // self.groups * math.prod(self.kernel)
        return 2.0 * self.images * math.prod(self.after) * self.made * inner

    @property
    def usable(self) -> bool:
        if any(k // 2 >= p for k, p in zip(self.kernel, self.plane) if k > 1):
            return False
        return LIMITS["least"] < self.elements < LIMITS["elements"] and self.flops < LIMITS["flops"]

    def run(self, drawn: Drawn, last: bool) -> None:
        x = drawn.tensor(self.images, self.channels, *self.plane, last=last)
        w = drawn.tensor(self.made, self.channels // self.groups, *self.kernel, last=last)
        dims = len(self.plane)
        args: list[Any] = [[*self.stride], self.padding, [1] * dims, False, [0] * dims, self.groups]
        y = torch.ops.aten.convolution(x, w, None, *args)
        # One of three channels or fewer is the first: nobody asks for its input's gradient.
        ways = [[False, True, False]] + ([[True, False, False]] if self.channels > 3 else [])
        for wanted in ways:
            torch.ops.aten.convolution_backward(y, x, w, [0], *args, wanted)


def _grouped(chosen: random.Random) -> Convolution:
    groups = chosen.choice(
        [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 64]
    )
    width = chosen.choice([4, 8, 8, 16, 16, 24, 24, 32, 32, 40, 48, 56, 64, 72, 80, 96, 104, 112, 120, 128,
                           144, 160, 168, 176, 192, 200, 216, 224, 232, 240])  # fmt: skip
    channels = groups * width
    if channels > 4096:
        return _grouped(chosen)
    kernel = chosen.choice([3, 3, 3, 3, 3, 3, 1, 5, 7])
    plane = chosen.choice(
        [7, 7, 8, 12, 14, 14, 16, 20, 24, 28, 28, 32, 40, 48, 56, 56, 64, 80, 96, 112, 112]
    )
    stride = chosen.choice([1, 1, 2])
    return Convolution(
        chosen.choice([1, 2, 4, 8, 16, 32, 32, 48, 64, 96, 128, 192]),
        channels,
        channels * chosen.choice([1, 1, 1, 1, 2]),
        (plane, plane),
        (kernel, kernel),
        (stride, stride),
        groups,
    )


def _width(chosen: random.Random) -> int:
    """Most nets have multiples of 8 or 16; those that were scaled or pruned have any number."""
    if chosen.random() < 0.3:
        return chosen.randint(12, 960)
    return chosen.choice(
        [16, 24, 32, 48, 64, 64, 80, 96, 128, 128, 144, 192, 256, 288, 320, 384, 512]
    )


def _volume(chosen: random.Random) -> Convolution:
    kernel: tuple[int, ...] = chosen.choice(
        [(1, 3, 3), (1, 3, 3), (3, 1, 1), (3, 1, 1), (3, 3, 3), (3, 3, 3), (3, 3, 3), (1, 1, 1), (5, 1, 1),
         (1, 7, 7), (3, 7, 7), (5, 7, 7), (7, 7, 7), (5, 5, 5), (2, 2, 2)]
    )  # fmt: skip
    channels, made, groups = _width(chosen), _width(chosen), 1
    if kernel[-1] == 7:
        channels, made = chosen.choice([1, 2, 3, 3, 3]), chosen.choice([16, 24, 32, 45, 64, 64, 96])
        stride: tuple[int, ...] = chosen.choice([(1, 2, 2), (2, 2, 2), (1, 1, 1)])
    elif kernel == (2, 2, 2):
        stride = (2, 2, 2)
    else:
        stride = chosen.choice([(1, 1, 1)] * 4 + [(2, 2, 2), (1, 2, 2), (2, 1, 1)])
        if kernel[0] == 1:
            stride = (1, *stride[1:])
        if kernel[1] == 1 and kernel[0] > 1:
            stride = (stride[0], 1, 1)
        if kernel == (3, 3, 3) and chosen.random() < 0.25:
            channels = made = chosen.choice([24, 48, 54, 64, 108, 128, 216, 256, 432])
            groups = channels if chosen.random() < 0.6 else chosen.choice([2, 4, 6])
            channels = made = channels // groups * groups
        elif chosen.random() < 0.06:
            channels = chosen.choice([1, 2, 3, 4])
    side = chosen.choice([7, 8, 12, 14, 16, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112])
    depth = chosen.choice([2, 4, 4, 8, 8, 16, 16, 32, side, side, side])
    images = chosen.choice([1, 1, 2, 2, 4, 4, 8, 8, 16, 32])
    return Convolution(images, channels, made, (depth, side, side), kernel, stride, groups)


def _signal(chosen: random.Random) -> Convolution:
    channels = chosen.choice([1, 32, 64, 80, 96, 128, 192, 256, 256, 384, 512, 512, 768, 1024])
    made = chosen.choice([64, 128, 192, 256, 384, 512, 512, 768, 1024, channels, channels])
    kernel, stride, groups = (
        chosen.choice([1, 2, 3, 3, 3, 5, 7, 10, 15]),
        chosen.choice([1, 1, 1, 2, 4, 5]),
        1,
    )
    if chosen.random() < 0.3 and channels > 1:
        made = channels
        groups = chosen.choice([channels, channels, 16, 8])
        kernel = chosen.choice([3, 5, 7, 15, 31, 31, 127])
    length = chosen.choice(
        [100, 128, 200, 250, 400, 512, 750, 1000, 1500, 3000, 4096, 8000, 16000, 48000]
    )
    images = chosen.choice([1, 2, 4, 8, 16, 32, 64])
    return Convolution(images, channels, max(made, 2), (length,), (kernel,), (stride,), groups)


def _plain(chosen: random.Random) -> Convolution:
    """Of two dimensions, of any number of channels, some much wider one way than the other."""
    kernel = chosen.choice(
        [(1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (1, 7), (7, 1), (1, 3), (3, 1), (5, 5)]
    )
    stride = chosen.choice([(1, 1), (1, 1), (1, 1), (2, 2)])
    side = chosen.choice(
        [7, 8, 13, 14, 17, 20, 24, 28, 32, 35, 40, 48, 56, 64, 80, 100, 112, 128, 160, 200]
    )
    plane = (side, chosen.choice([side, side, side * 3 // 2, side * 2]))
    images = chosen.choice([1, 2, 4, 8, 16, 32, 64])
    return Convolution(images, _width(chosen), _width(chosen), plane, kernel, stride, 1)


CONVOLUTIONS = {"groups": _grouped, "volumes": _volume, "signals": _signal, "widths": _plain}


def _convolutions(kind: str, number: int, drawn: Drawn, last: bool) -> Iterator[Case]:
    """The same shapes for every type and format, so that these can be compared."""
    chosen = random.Random(f"shapes {kind} {number}")
    count = 0
    while count < _CASES:
        shape = CONVOLUTIONS[kind](chosen)
        if not shape.usable:
            continue
        count += 1
        yield lambda s=shape: s.run(drawn, last)


def _window(chosen: random.Random, drawn: Drawn) -> Case:
    """Attention in windows of a picture that is shifted before and after."""
    side, reach = chosen.choice(
        [(56, 7), (28, 7), (14, 7), (64, 8), (32, 8), (16, 8), (48, 12), (24, 12)]
    )
    heads = chosen.choice([3, 4, 6, 8, 12, 16])
    width = heads * 32
    images = chosen.choice([2, 8, 16, 32, 64, 128])
    # All that is kept at once, roughly.
    while images > 1 and images * side * side * width * 3 > LIMITS["elements"]:
        images //= 2
    tokens, windows = reach * reach, (side // reach) ** 2

    def run() -> None:
        x = drawn.tensor(images, side, side, width, grad=True)
        w, b = drawn.tensor(width, grad=True), drawn.tensor(width, grad=True)
        bias = drawn.tensor(1, heads, tokens, tokens, grad=True)
        mask = drawn.tensor(windows, tokens, tokens)
        y = F.layer_norm(x, (width,), w, b)
        y = torch.roll(y, (-(reach // 2), -(reach // 2)), (1, 2))
        y = y.view(images, side // reach, reach, side // reach, reach, width)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(images * windows, tokens, width)
        weight = drawn.tensor(3 * width, width, grad=True)
        qkv = F.linear(y, weight, drawn.tensor(3 * width, grad=True))
        qkv = qkv.reshape(images * windows, tokens, 3, heads, 32).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * 32**-0.5, qkv[1], qkv[2]
        a = q.matmul(k.transpose(-2, -1)) + bias
        a = a.view(images, windows, heads, tokens, tokens) + mask.unsqueeze(1).unsqueeze(0)
        a = F.softmax(a.view(-1, heads, tokens, tokens), -1)
        y = a.matmul(v).transpose(1, 2).reshape(images * windows, tokens, width)
        y = y.view(images, side // reach, side // reach, reach, reach, width)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(images, side, side, width)
        y = torch.roll(y, (reach // 2, reach // 2), (1, 2))
        kept = torch.rand(images, 1, 1, 1, device=y.device, dtype=y.dtype) < 0.9
        y = x + y * kept
        halves = [y[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        y = torch.cat(halves, -1)
        y.backward(torch.ones_like(y))

    return run


def _rotary(chosen: random.Random, drawn: Drawn) -> Case:
    """What a language model does to queries and keys, its norms and its gates."""
    heads, few, head = chosen.choice(
        [(16, 8, 128), (14, 2, 64), (32, 8, 64), (12, 12, 64), (8, 1, 256), (16, 16, 80)]
    )
    length = chosen.choice([128, 256, 512, 1024, 2048])
    images = chosen.choice([1, 2, 4, 8, 16])
    width = heads * head
    while images > 1 and images * length * width * 6 > LIMITS["elements"]:
        images //= 2

    def half(t: torch.Tensor) -> torch.Tensor:
        first, second = t[..., : head // 2], t[..., head // 2 :]
        return torch.cat((-second, first), -1)

    def run() -> None:
        x = drawn.tensor(images, length, width, grad=True)
        w = drawn.tensor(width, grad=True)
        y = x.float()
        y = w * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        q = y.view(images, length, heads, head).transpose(1, 2)
        k = y[..., : few * head].view(images, length, few, head).transpose(1, 2)
        cos, sin = drawn.tensor(images, 1, length, head), drawn.tensor(images, 1, length, head)
        q, k = q * cos + half(q) * sin, k * cos + half(k) * sin
        if heads > few:
            k = k[:, :, None].expand(images, few, heads // few, length, head)
            k = k.reshape(images, heads, length, head)
        z = (q + k).transpose(1, 2).reshape(images, length, width)
        a, b = torch.cat((z, y), -1).chunk(2, -1)
        z = F.silu(a) * b + x
        z = z * torch.sigmoid(a) + F.gelu(b, approximate="tanh")
        z.backward(torch.ones_like(z))

    return run


def _form(chosen: random.Random, drawn: Drawn) -> Case:
    """Norms, gates of channels, means and sums over one dimension or another, masks."""
    images = chosen.choice([2, 4, 8, 16, 32, 64, 128])
    channels = chosen.choice([24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024])
    side = chosen.choice([7, 8, 14, 16, 28, 32, 56, 64, 112])
    last = chosen.random() < 0.5
    while images > 1 and images * channels * side * side * 3 > LIMITS["elements"]:
        images //= 2

    def run() -> None:
        x = drawn.tensor(images, channels, side, side, last=last, grad=True)
        gate = drawn.tensor(images, channels, 1, 1, grad=True)
        scale = drawn.tensor(channels, 1, 1, grad=True)
        y = x * gate.sigmoid() + F.hardswish(x)
        y = y * scale + F.leaky_relu(x, 0.1)
        w, b = drawn.tensor(channels, grad=True), drawn.tensor(channels, grad=True)
        y = y + F.group_norm(x, 8, w, b)
        total = y.mean((2, 3)).sum() + F.adaptive_avg_pool2d(y, 1).sum()
        rows = y.flatten(2).transpose(1, 2)
        rows = F.layer_norm(rows, (channels,), w, b)
        total = total + rows.mean(1).sum() + rows.amax(-1).sum()
        kept = rows > 0
        masked = rows.masked_fill(kept, 0.0)
        mixed = torch.where(kept, rows, masked).transpose(1, 2).contiguous()
        total = total + mixed.sum(0).sum() + mixed.sum(-1).sum() + mixed.softmax(1).sum()
        total.backward()

    return run


def _solid(chosen: random.Random, drawn: Drawn) -> Case:
    """What stands between convolutions over volumes."""
    images, channels = (
        chosen.choice([1, 2, 4, 8, 16]),
        chosen.choice([16, 24, 32, 45, 64, 96, 128, 144, 256]),
    )
    side = chosen.choice([8, 12, 14, 16, 24, 28, 32, 48, 56, 64, 96])
    depth = chosen.choice([4, 8, 16, side])
    last = chosen.random() < 0.25
    while images > 1 and images * channels * depth * side * side * 3 > LIMITS["elements"]:
        images //= 2
    if images * channels * depth * side * side * 2 > LIMITS["elements"]:
        return _solid(chosen, drawn)

    def run() -> None:
        x = drawn.tensor(images, channels, depth, side, side, last=last, grad=True)
        whole = torch.float32
        w = torch.ones(channels, device=x.device, dtype=whole, requires_grad=True)
        b = torch.zeros(channels, device=x.device, dtype=whole, requires_grad=True)
        mean, var = torch.zeros_like(w).detach(), torch.ones_like(w).detach()
        y = F.relu(F.batch_norm(x, mean, var, w, b, training=True))
        y = y + F.leaky_relu(F.instance_norm(x, None, None, w.to(x.dtype), b.to(x.dtype)), 0.01)
        total = F.max_pool3d(y, 2).sum() + F.adaptive_avg_pool3d(y, 1).sum()
        total = total + F.max_pool3d(y, 3, 2, 1).sum() + F.avg_pool3d(y, 2).sum()
        total.backward()

    return run


def _recurrent(chosen: random.Random, drawn: Drawn) -> Case:
    kind = chosen.choice([torch.nn.LSTM, torch.nn.LSTM, torch.nn.GRU])
    before, width = (
        chosen.choice([40, 80, 128, 256, 512, 1024]),
        chosen.choice([64, 128, 256, 512, 768, 1024]),
    )
    layers, both = chosen.choice([1, 1, 2, 3]), chosen.random() < 0.4
    length, images = chosen.choice([16, 32, 64, 96]), chosen.choice([4, 8, 16, 32, 64, 128])
    while images > 1 and images * length * max(before, width) * layers > LIMITS["elements"] / 8:
        images //= 2
    pool = drawn.pool
    module = kind(before, width, layers, batch_first=True, bidirectional=both)
    module = module.to(device=pool.device, dtype=pool.dtype)

    def run() -> None:
        x = drawn.tensor(images, length, before, grad=True)
        y, _ = module(x)
        y.backward(torch.ones_like(y))

    return run


def _pool(chosen: random.Random, drawn: Drawn) -> Case:
    """The largest and the mean of windows, of pictures and of volumes."""
    solid = chosen.random() < 0.7
    images = chosen.choice([1, 2, 4, 8, 16, 32])
    channels = chosen.choice([16, 32, 48, 64, 96, 128, 192, 256, 480, 512, 832])
    side = chosen.choice([7, 8, 14, 16, 28, 32, 56, 64, 112])
    plane = (chosen.choice([2, 4, 8, 16]), side, side) if solid else (side, side)
    most = LIMITS["elements"] / 3
    while images > 1 and images * channels * math.prod(plane) > most:
        images //= 2
    if images * channels * math.prod(plane) > most:
        return _pool(chosen, drawn)
    kernel = chosen.choice([2, 3, 3, 3])
    stride = chosen.choice([1, 2]) if kernel == 3 else 2
    window = (1, kernel, kernel) if solid and chosen.random() < 0.25 else (kernel,) * len(plane)
    steps = tuple(stride if k > 1 else 1 for k in window)
    around = tuple(k // 2 if k == 3 else 0 for k in window)
    # Windows of a single picture of a volume fit into any; others need as many.
    if any(k > p + 2 * a for k, p, a in zip(window, plane, around)):
        return _pool(chosen, drawn)
    last = chosen.random() < 0.2
    largest = F.max_pool3d if solid else F.max_pool2d
    mean = F.avg_pool3d if solid else F.avg_pool2d

    def run() -> None:
        x = drawn.tensor(images, channels, *plane, last=last, grad=True)
        y = largest(x, window, steps, around)
        z = mean(x, window, steps, around)
        (y + z).backward(torch.ones_like(y))

    return run


def _row(chosen: random.Random, drawn: Drawn) -> Case:
    """Norms of rows whose elements do not lie beside each other: pictures and transposed ones."""
    images = chosen.choice([1, 4, 16, 32, 64, 128])
    tokens = chosen.choice([49, 64, 144, 196, 256, 400, 576, 784, 1024, 3136])
    width = chosen.choice([64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024])
    while images > 1 and images * tokens * width > LIMITS["elements"] / 6:
        images //= 2
    form = chosen.choice(["transposed", "transposed", "picked", "dense"])

    def run() -> None:
        w, b = drawn.tensor(width, grad=True), drawn.tensor(width, grad=True)
        if form == "transposed":
            x = drawn.tensor(images, width, tokens, grad=True)
            y = F.layer_norm(x.transpose(1, 2), (width,), w, b)
            # What comes back lies as the model's next layer has it: either way.
            y.transpose(1, 2).backward(drawn.tensor(images, width, tokens))
            y = F.layer_norm(x.transpose(1, 2), (width,), w, b)
            y.backward(drawn.tensor(images, tokens, width))
        elif form == "picked":
            x = drawn.tensor(images, tokens, 2 * width, grad=True)
            y = F.layer_norm(x[..., :width], (width,), w, b)
            y.backward(drawn.tensor(images, tokens, width))
        else:
            x = drawn.tensor(images, tokens, width, grad=True)
            y = F.layer_norm(x, (width,), w, b)
            y.backward(drawn.tensor(images, tokens, width))

    return run


def _plane(chosen: random.Random, drawn: Drawn) -> Case:
    """Batch norms of pictures of few pixels and many channels, and of volumes."""
    images = chosen.choice([2, 4, 8, 16, 32, 64, 128, 256])
    channels = chosen.choice([16, 32, 64, 96, 144, 192, 256, 320, 480, 672, 960, 1152, 1488, 2048])
    plane: tuple[int, ...] = chosen.choice(
        [(4, 4), (7, 7), (7, 7), (7, 7), (8, 8), (10, 10), (14, 14), (14, 14), (16, 16), (28, 28), (56, 56),
         (2, 7, 7), (4, 14, 14), (8, 28, 28)]
    )  # fmt: skip
    while images > 1 and images * channels * math.prod(plane) > LIMITS["elements"] / 4:
        images //= 2

    def run() -> None:
        x = drawn.tensor(images, channels, *plane, grad=True)
        w = torch.ones(channels, device=x.device, requires_grad=True)
        b = torch.zeros(channels, device=x.device, requires_grad=True)
        mean, var = torch.zeros_like(w).detach(), torch.ones_like(w).detach()
        y = F.batch_norm(x, mean, var, w, b, training=True)
        y.backward(drawn.tensor(images, channels, *plane))

    return run


def _query(chosen: random.Random, drawn: Drawn) -> Case:
    """Attention whose queries are many more than its keys, or the other way round, or few of both."""
    many = chosen.choice([49, 128, 256, 784, 1024, 3136, 4096, 16384])
    few = chosen.choice([16, 49, 64, 77, 128, 196, 256])
    queries, keys = chosen.choice([(many, few), (many, few), (few, many), (few, few)])
    heads, head = chosen.choice([1, 2, 4, 5, 8, 12]), chosen.choice([32, 64, 64, 64, 80, 128])
    images = chosen.choice([1, 2, 4, 8, 16, 32])
    while images > 1 and images * heads * (queries + keys) * head > LIMITS["elements"] / 12:
        images //= 2

    def run() -> None:
        q = drawn.tensor(images, heads, queries, head, grad=True)
        k = drawn.tensor(images, heads, keys, head, grad=True)
        v = drawn.tensor(images, heads, keys, head, grad=True)
        y = F.scaled_dot_product_attention(q, k, v)
        y.backward(torch.ones_like(y))

    return run


def _resized(chosen: random.Random, drawn: Drawn) -> Case:
    images = chosen.choice([1, 2, 4, 8, 16, 32])
    channels = chosen.choice([1, 3, 16, 19, 21, 32, 48, 64, 128, 150, 256, 512])
    side = chosen.choice([7, 8, 14, 16, 28, 32, 56, 64, 96, 128])
    times = chosen.choice([2, 2, 2, 4, 8])
    last = chosen.random() < 0.2
    nearest = chosen.random() < 0.25
    most = LIMITS["elements"] / 3
    while images > 1 and images * channels * (side * times) ** 2 > most:
        images //= 2
    if images * channels * (side * times) ** 2 > most:
        return _resized(chosen, drawn)

    def run() -> None:
        x = drawn.tensor(images, channels, side, side, last=last, grad=True)
        mode = "nearest" if nearest else "bilinear"
        y = F.interpolate(x, scale_factor=times, mode=mode)
        y.backward(torch.ones_like(y))

    return run


OTHERS = {
    "windows": (_window, 8),
    "rotary": (_rotary, 8),
    "forms": (_form, 8),
    "solids": (_solid, 8),
    "recurrent": (_recurrent, 5),
    "pools": (_pool, 12),
    "rows": (_row, 12),
    "planes": (_plane, 16),
    "queries": (_query, 12),
    "resized": (_resized, 10),
}


def _others(kind: str, number: int, drawn: Drawn) -> Iterator[Case]:
    chosen = random.Random(f"shapes {kind} {number}")
    make, count = OTHERS[kind]
    for _ in range(count):
        yield make(chosen, drawn)


@dataclasses.dataclass(frozen=True)
class Chunk:
    kind: str
    number: int
    precision: str
    layout: str
    #: Whether cuDNN may take TF32 for fp32, which PyTorch lets it unless told otherwise.
    tf32: bool = True

    @property
    def name(self) -> str:
        strict = "" if self.tf32 else "_strict"
        return f"sweep_{self.kind}{self.number}_{self.layout}_{self.precision}{strict}"

    def cases(self, device: str) -> list[Case]:
        drawn = Drawn(_TYPES[self.precision], device)
        if self.kind in CONVOLUTIONS:
            return [*_convolutions(self.kind, self.number, drawn, self.layout == "last")]
        return [*_others(self.kind, self.number, drawn)]


#: Of each kind: how many chunks in which types and formats. What is missing most comes first.
_PLAN = (
    ("groups", 10, (("bf16", "last"), ("bf16", "first"), ("fp32", "last"), ("fp32", "first"))),
    ("volumes", 7, (("bf16", "first"), ("fp32", "first"))),
    ("windows", 3, (("bf16", "first"), ("fp32", "first"))),
    ("volumes", 3, (("bf16", "last"), ("fp32", "last"), ("fp16", "first"))),
    ("groups", 2, (("fp16", "last"),)),
    ("widths", 4, (("bf16", "last"), ("bf16", "first"), ("fp32", "last"), ("fp32", "first"))),
    ("signals", 3, (("bf16", "first"), ("fp32", "first"))),
    ("rotary", 3, (("bf16", "first"), ("fp32", "first"))),
    ("forms", 3, (("bf16", "first"), ("fp32", "first"))),
    ("solids", 3, (("bf16", "first"), ("fp32", "first"))),
    *((kind, 3, (("bf16", "first"), ("fp32", "first"))) for kind in ("pools", "rows", "planes", "queries", "resized")),
)


def chunks() -> list[Chunk]:
    made = [
        Chunk(kind, number, precision, layout)
        for kind, count, forms in _PLAN
        for number in range(count)
        for precision, layout in forms
    ]
    random.Random("order").shuffle(made)
    made.sort(key=lambda c: c.kind not in ("groups", "volumes", "windows"))
    made += [
        Chunk(kind, 0, "fp32", layout, False)
        for kind in ("groups", "volumes", "widths")
        for layout in ("first", "last")
    ]
    # Thousands of small kernels each.
    return made + [
        Chunk("recurrent", number, precision, "first")
        for number in range(4)
        for precision in ("fp32", "bf16")
    ]
