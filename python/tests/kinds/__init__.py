"""Kinds of training jobs, each written as its user would. test_kinds.py captures every one; the
table in docs/capture.md lists them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F

import plimsoll


@dataclass(frozen=True)
class Kind:
    name: str
    #: Captures the job, and checks what has to hold for this kind besides.
    job: Callable[[], plimsoll.Capture]
    #: Words of the note that has to tell what was assumed.
    assumes: str | None
    #: Words of the error, where the job cannot be captured.
    refused: str | None
    #: Packages without which it is skipped.
    needs: tuple[str, ...]
    nightly: bool

    @property
    def outcome(self) -> str:
        """As the table in docs/capture.md says it."""
        if self.refused:
            return "refused"
        return "works; assumed" if self.assumes else "works"


KINDS: list[Kind] = []


def kind(
    name: str,
    *,
    assumes: str | None = None,
    refused: str | None = None,
    needs: tuple[str, ...] = (),
    nightly: bool = False,
) -> Callable[[Callable[[], plimsoll.Capture]], Callable[[], plimsoll.Capture]]:
    def add(job: Callable[[], plimsoll.Capture]) -> Callable[[], plimsoll.Capture]:
        KINDS.append(Kind(name, job, assumes, refused, needs, nightly))
        return job

    return add


def ops(made: plimsoll.Capture) -> list[str]:
    """The operators of a captured job, in order."""
    strings = made.document["strings"]
    return [strings[event[1]] for event in made.events if event[0] == "call"]


def labelled(made: plimsoll.Capture, category: str) -> int:
    return sum(len(event[2]) for event in made.events if event[:2] == ["label", category])


#: The second step is what every later one does.
STEPS = 2
capture = functools.partial(plimsoll.capture, steps=STEPS)


# What many jobs have in common.


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 64), torch.randint(0, 10, (n,))


def classify(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 3, 32, 32), torch.randint(0, 10, (n,))


def tokens(n: int) -> torch.Tensor:
    return torch.randint(0, 100, (n, 32))


def next_token(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Block(nn.Module):
    """Of a transformer, causal."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, c = x.shape
        qkv = self.qkv(self.norms[0](x)).view(b, s, 3, self.heads, c // self.heads)
        mixed = self.attend(*qkv.permute(2, 0, 3, 1, 4))
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, c))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, layers: int = 1, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.positions = nn.Embedding(32, 64)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)
