"""Small jobs over a batch and a length.

`python length_jobs.py FOLDER` captures them: tests/data/steps/lengths.step.json.gz, sequences, and
sides.step.json.gz, images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import plimsoll

WORDS, WIDTH, HEADS, CLASSES = 4096, 256, 4, 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        heads = (
            part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.blocks(self.words(tokens)))


def sequences(n, length):
    return torch.randint(WORDS, (n, length), device="cuda")


def next_words(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))


def images(n, side):
    return torch.randn(n, 3, side, side, device="cuda"), torch.randint(CLASSES, (n,), device="cuda")


def classes(model, pictures, labels):
    return F.cross_entropy(model(pictures), labels)


def capture_all(folder: Path) -> None:
    plimsoll.capture(
        Language(),
        torch.optim.AdamW,
        sequences,
        next_words,
        path=folder / "lengths.step.json.gz",
        lengths=(64, 128, 192),
    )
    plimsoll.capture(
        Pictures(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        images,
        classes,
        path=folder / "sides.step.json.gz",
        lengths=(32, 64, 96),
    )


if __name__ == "__main__":
    capture_all(Path(sys.argv[1]))
