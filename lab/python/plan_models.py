"""Models of our own for plan_jobs.py: speech, segmentation, detection, larger pictures."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class _ConformerBlock(nn.Module):
    """Half a step, attention, a depthwise convolution over time, half a step."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = _half_step(width), _half_step(width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before = nn.LayerNorm(width)
        self.gate = nn.Conv1d(width, 2 * width, 1)
        self.deep = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.middle, self.after = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        x = x + 0.5 * self.first(x)
        parts = self.qkv(self.norm(x)).reshape(n, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(y)
        y = F.glu(self.gate(self.before(x).transpose(1, 2)), 1)
        x = x + self.after(F.silu(self.middle(self.deep(y)))).transpose(1, 2)
        last: torch.Tensor = self.last(x + 0.5 * self.second(x))
        return last


def _half_step(width: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
    )


class Conformer(nn.Module):
    """Spectra to words: two convolutions that take every fourth frame, then conformer blocks."""

    def __init__(self, width: int = 384, heads: int = 6, depth: int = 4, words: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
        )
        self.enter = nn.Linear(19 * width, width)
        self.blocks = nn.Sequential(*(_ConformerBlock(width, heads, 31) for _ in range(depth)))
        self.out = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x.transpose(1, 2).unsqueeze(1))
        y = self.enter(y.transpose(1, 2).flatten(2))
        out: torch.Tensor = self.out(self.blocks(y)).mean(1)
        return out


class Listener(nn.Module):
    """Spectra through convolutions and recurrent layers that read both ways."""

    def __init__(self, width: int = 768, layers: int = 4, words: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 32, (11, 41), (2, 2), (5, 20)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (11, 21), (1, 2), (5, 10)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.layers = nn.GRU(640, width, layers, batch_first=True, bidirectional=True)
        self.norm, self.out = nn.LayerNorm(2 * width), nn.Linear(2 * width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x.transpose(1, 2).unsqueeze(1))
        y, _ = self.layers(y.transpose(1, 2).flatten(2))
        out: torch.Tensor = self.out(self.norm(y)).mean(1)
        return out


def _twice(before: int, after: int) -> nn.Module:
    parts: list[nn.Module] = []
    for width in (before, after):
        parts += [nn.Conv2d(width, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        parts.append(nn.ReLU(inplace=True))
    return nn.Sequential(*parts)


class Segmenter(nn.Module):
    """A U-Net whose way up is gated: what it takes from the way down is weighed pixel by pixel."""

    def __init__(self, width: int = 48, classes: int = 8) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([3, *sizes], sizes))
        pairs = list(zip(sizes, sizes[1:]))[::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
        self.gate = nn.ModuleList(nn.Conv2d(2 * a, 1, 1) for a, _ in pairs)
        self.up = nn.ModuleList(_twice(2 * a, a) for a, _ in pairs)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if number else x)
            kept.append(x)
        kept.pop()
        for rise, gate, block in zip(self.rise, self.gate, self.up):
            x, across = rise(x), kept.pop()
            weight = torch.sigmoid(gate(torch.cat((x, across), 1)))
            x = block(torch.cat((x, weight * across), 1))
        out: torch.Tensor = self.out(x)
        return out


class _MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        mixed: torch.Tensor = x + self.channels(self.norm2(x))
        return mixed


class Mixer(nn.Module):
    def __init__(self, width: int = 640, depth: int = 12, side: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(_MixerBlock((side // 16) ** 2, width) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        out: torch.Tensor = self.out(self.norm(y).mean(1))
        return out


class Detector(nn.Module):
    """A backbone's last three stages, a pyramid of them, and heads that all levels share."""

    def __init__(self, backbone: nn.Module, sizes: tuple[int, ...], width: int = 256) -> None:
        super().__init__()
        self.backbone = backbone
        self.across = nn.ModuleList(nn.Conv2d(size, width, 1) for size in sizes)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in sizes)
        self.classes, self.boxes = _head(width, 9 * 20), _head(width, 9 * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        body: Any = self.backbone
        x = body.maxpool(body.relu(body.bn1(body.conv1(x))))
        levels = []
        for stage in (body.layer1, body.layer2, body.layer3, body.layer4):
            x = stage(x)
            levels.append(x)
        upper: torch.Tensor | None = None
        found = []
        for level, across, smooth in zip(levels[:0:-1], self.across, self.smooth):
            y = across(level)
            if upper is not None:
                y = y + F.interpolate(upper, size=y.shape[-2:])
            upper = y
            y = smooth(y)
            found += [self.classes(y).flatten(1), self.boxes(y).flatten(1)]
        return torch.cat(found, 1)


def _head(width: int, made: int) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(4):
        parts += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(32, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Conv2d(width, made, 3, padding=1))


class _Refined(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.second(F.relu(self.first(x)))


class Enlarger(nn.Module):
    """Super-resolution: blocks on the small picture, whose channels then become its pixels."""

    def __init__(self, width: int = 128, depth: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(_Refined(width) for _ in range(depth)))
        self.rise = nn.ModuleList(nn.Conv2d(width, 4 * width, 3, padding=1) for _ in range(2))
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.blocks(x)
        for rise in self.rise:
            x = F.pixel_shuffle(rise(x), 2)
        y: torch.Tensor = self.out(x)
        return y
