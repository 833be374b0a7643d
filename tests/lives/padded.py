"""Batches padded to their longest sample, in the order that the seed gives."""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
batch_size = parser.parse_args().batch_size


class Texts(Dataset):
    def __init__(self):
        lengths = random.Random(3)
        self.lengths = [
            max(8, min(700, int(lengths.lognormvariate(4.4, 0.8)))) for _ in range(1600)
        ]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.full((self.lengths[index],), index % 4000)


def collate(samples):
    return pad_sequence(samples, batch_first=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4000, 256)
        self.rnn = nn.GRU(256, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 4000)

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for x in DataLoader(Texts(), batch_size, shuffle=True, collate_fn=collate):
    x = x.cuda()
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
