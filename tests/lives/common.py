"""What the jobs of this folder share: a small language model and its data, as people write them."""

import torch
from torch import nn
from torch.utils.data import Dataset

VOCABULARY = 32000


class Block(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, width=512, layers=6, vocabulary=VOCABULARY, longest=1024):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Texts(Dataset):
    def __init__(self, count, length=256):
        self.ids = torch.randint(0, VOCABULARY, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


def loss_of(logits, ids):
    return nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)
    )
