"""Small networks of seven kinds, as people write them, with which the host is timed. Each is a list
of blocks that take what the one before gives, and the size of its input.
"""

from __future__ import annotations

from typing import Any

#: Of each network.
BLOCKS = 12
_WIDTH = 128


def bottlenecks(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn = torch.nn

    class Bottleneck(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.inward = nn.Conv2d(32, 8, 1, bias=False)
            self.outward = nn.Conv2d(8, 32, 1, bias=False)
            self.within = nn.Conv2d(8, 8, 3, padding=1, bias=False)
            self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (8, 8, 32))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            y = self.relu(self.norms[0](self.inward(x)))
            y = self.relu(self.norms[1](self.within(y)))
            return self.relu(self.norms[2](self.outward(y)) + x)

    return nn.ModuleList(Bottleneck() for _ in range(BLOCKS)), (2, 32, 16, 16)


def depthwise(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn = torch.nn

    class Inverted(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Sequential(
                nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.Hardswish()
            )
            self.deep = nn.Sequential(
                nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), nn.BatchNorm2d(64)
            )
            self.squeeze, self.excite = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 64, 1)
            self.narrow = nn.Sequential(nn.Conv2d(64, 16, 1, bias=False), nn.BatchNorm2d(16))

        def forward(self, x: Any) -> Any:
            y = nn.functional.hardswish(self.deep(self.wide(x)))
            scale = self.excite(nn.functional.relu(self.squeeze(y.mean((2, 3), keepdim=True))))
            return x + self.narrow(y * nn.functional.hardsigmoid(scale))

    return nn.ModuleList(Inverted() for _ in range(BLOCKS)), (2, 16, 16, 16)


def dense(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn = torch.nn

    class Dense(nn.Module):  # type: ignore[name-defined,misc]
        """Layers that read all before them."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(
                    nn.BatchNorm2d(16 + 8 * i), nn.ReLU(), nn.Conv2d(16 + 8 * i, 8, 3, padding=1)
                )
                for i in range(4)
            )
            self.last = nn.Conv2d(48, 16, 1)

        def forward(self, x: Any) -> Any:
            parts = [x]
            for layer in self.layers:
                parts.append(layer(torch.cat(parts, 1)))
            return self.last(torch.cat(parts, 1))

    return nn.ModuleList(Dense() for _ in range(BLOCKS)), (2, 16, 16, 16)


def denoiser(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn = torch.nn

    class Noisy(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.GroupNorm(4, 32) for _ in range(2))
            self.first, self.second = (nn.Conv2d(32, 32, 3, padding=1) for _ in range(2))
            self.time = nn.Linear(32, 64)

        def forward(self, x: Any) -> Any:
            shift, scale = self.time(nn.functional.silu(x.mean((2, 3)))).chunk(2, 1)
            y = self.first(nn.functional.silu(self.norms[0](x)))
            y = self.norms[1](y) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
            return x + self.second(nn.functional.silu(y))

    return nn.ModuleList(Noisy() for _ in range(BLOCKS)), (2, 32, 16, 16)


def encoder(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn, functional = torch.nn, torch.nn.functional

    class Encoder(nn.Module):  # type: ignore[name-defined,misc]
        """As in BERT: a projection each for queries, keys and values, and dropout."""

        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
            self.wide, self.narrow = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
            self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))

        def forward(self, x: Any) -> Any:
            n, length, width = x.shape
            parts = (part(x) for part in (self.q, self.k, self.v))
            q, k, v = (y.view(n, length, 4, width // 4).transpose(1, 2) for y in parts)
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
            y = self.out(y.transpose(1, 2).reshape(n, length, width))
            x = self.norms[0](x + functional.dropout(y, 0.1))
            y = self.narrow(functional.gelu(self.wide(x)))
            return self.norms[1](x + functional.dropout(y, 0.1))

    return nn.ModuleList(Encoder() for _ in range(BLOCKS)), (2, 32, _WIDTH)


def decoder(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn, functional = torch.nn, torch.nn.functional

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        one, other = x.chunk(2, -1)
        return x * cos + torch.cat((-other, one), -1) * sin

    class Norm(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(_WIDTH))

        def forward(self, x: Any) -> Any:
            y = x.float()
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * y.to(x.dtype)

    class Decoder(nn.Module):  # type: ignore[name-defined,misc]
        """As in Llama: positions that turn queries and keys, fewer heads of keys, a gate."""

        def __init__(self) -> None:
            super().__init__()
            self.q, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(2))
            self.k, self.v = (nn.Linear(_WIDTH, _WIDTH // 2, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(_WIDTH, 2 * _WIDTH, bias=False) for _ in range(2))
            self.down = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)
            self.norms = nn.ModuleList(Norm() for _ in range(2))
            self.register_buffer("places", torch.arange(32.0)[:, None].expand(32, 32))

        def forward(self, x: Any) -> Any:
            n, length, _ = x.shape
            y = self.norms[0](x)
            parts = (part(y).view(n, length, -1, 32) for part in (self.q, self.k, self.v))
            q, k, v = (part.transpose(1, 2) for part in parts)
            cos, sin = self.places.cos(), self.places.sin()
            q, k = turned(q, cos, sin), turned(k, cos, sin)
            k, v = (part.repeat_interleave(2, 1) for part in (k, v))
            q, k = q.to(v.dtype), k.to(v.dtype)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(n, length, _WIDTH))
            y = self.norms[1](x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    return nn.ModuleList(Decoder() for _ in range(BLOCKS)), (2, 32, _WIDTH)


def windows(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn, functional = torch.nn, torch.nn.functional

    class Windows(torch.nn.Module):  # type: ignore[name-defined,misc]
        """Attention in windows that are cut out and put back: many views, few kernels."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(_WIDTH)
            self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)

        def forward(self, x: Any) -> Any:
            n, side, _, width = x.shape
            y = torch.roll(self.norm(x), (2, 2), (1, 2)).view(n, side // 4, 4, side // 4, 4, width)
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, width)
            q, k, v = self.qkv(y).view(-1, 16, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
            y = functional.scaled_dot_product_attention(q, k, v)
            y = self.out(y.transpose(1, 2).reshape(-1, 16, width))
            y = y.view(n, side // 4, side // 4, 4, 4, width).permute(0, 1, 3, 2, 4, 5)
            return x + torch.roll(y.reshape(n, side, side, width), (-2, -2), (1, 2))

    return nn.ModuleList(Windows() for _ in range(BLOCKS)), (1, 8, 8, _WIDTH)


ALL = [bottlenecks, depthwise, dense, denoiser, encoder, decoder, windows]
