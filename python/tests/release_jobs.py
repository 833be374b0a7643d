"""Training loops that hold memory which nothing uses again, each as it is found in the wild and as
it is once edited.

`python release_jobs.py FOLDER` captures all of them: the files in tests/data/steps/early.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH, CLASSES = 4096, 64, 32, 10


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        return self.head(F.relu(self.layer(self.embedding(ids))))


def text(n):
    return torch.randint(0, VOCABULARY, (n, LENGTH), device="cuda")


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()
        )
        self.head = nn.Linear(8 * 16 * 16, CLASSES)

    def forward(self, images):
        return self.head(self.layers(images))


def pictures(n):
    return torch.randn(n, 3, 64, 64, device="cuda"), torch.randint(0, CLASSES, (n,), device="cuda")


def adam(parameters):
    return torch.optim.Adam(parameters)


# The model's output has a name until the function returns, through the whole backward.


def output_kept(model, optimizer, ids):
    out = model(ids)
    loss = F.cross_entropy(out.view(-1, VOCABULARY), ids.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def output_freed(model, optimizer, ids):
    out = model(ids)
    loss = F.cross_entropy(out.view(-1, VOCABULARY), ids.view(-1))
    del out
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# The batch of a step is kept until the next one is through.


class BatchKept:
    def __init__(self):
        self.last = None

    def step(self, model, optimizer, batch):
        images, classes = batch
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
        optimizer.zero_grad()
        self.last = batch


class BatchFreed:
    def step(self, model, optimizer, batch):
        images, classes = batch
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
        optimizer.zero_grad()


# What is measured after a step goes into a list, and with it all that it was computed from.


class GraphKept:
    def __init__(self):
        self.history = []

    def step(self, model, optimizer, ids):
        F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1))
        self.history.append(loss)


class GraphFreed:
    def __init__(self):
        self.history = []

    def step(self, model, optimizer, ids):
        F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1))
        self.history.append(loss.detach())


JOBS = {
    "output_kept": (Language, text, lambda: output_kept),
    "output_freed": (Language, text, lambda: output_freed),
    "batch_kept": (Images, pictures, lambda: BatchKept().step),
    "batch_freed": (Images, pictures, lambda: BatchFreed().step),
    "graph_kept": (Language, text, lambda: GraphKept().step),
    "graph_freed": (Language, text, lambda: GraphFreed().step),
}


def captured(name, **options):
    import plimsoll

    model, make_batch, train_step = JOBS[name]
    return plimsoll.capture(model, adam, make_batch, train_step=train_step(), **options)


if __name__ == "__main__":
    for job in JOBS:
        captured(job).write(Path(sys.argv[1]) / f"{job}.step.json.gz")
