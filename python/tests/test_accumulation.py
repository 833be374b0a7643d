"""What `predict --accumulate` says of a plain script is what it says of the script edited as told:
a micro-batch, and the optimizer's step behind every N-th of them."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from program_here import needs_program  # noqa: E402

from plimsoll.answers.program import find  # noqa: E402
from plimsoll.scripts.command import main  # noqa: E402

COUNT = 3

HEAD = """
import collections, sys, torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
batch, count = int(sys.argv[1]), int(sys.argv[2])
"""

DENSE = """
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.GELU(),
                      nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4096, 256), torch.randn(4096, 256))
loader = DataLoader(data, batch_size=batch, drop_last=True)
"""

IMAGES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64)
        self.deep = nn.Conv2d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 10)
        self.register_buffer("grid", torch.randn(1, 64, 64, 64))
    def forward(self, x):
        x = F.relu(self.norm(self.stem(x))) + self.grid
        return self.head(F.relu(self.deep(x)).mean((2, 3)))
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(512, 3, 64, 64), torch.randint(0, 10, (512,)))
loader = DataLoader(data, batch_size=batch, drop_last=True)
"""

TOKENS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4096, 256)
        self.block = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 4096, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, x):
        return self.head(self.norm(self.block(self.embed(x))))
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(*(torch.randint(0, 4096, (512, 128)) for _ in range(2)))
loader = DataLoader(data, batch_size=batch, drop_last=True)
"""

#: By name: the model, and its loop twice, plain and edited. `{if_due}` is the edit.
LOOPS = {
    "plain": (
        DENSE,
        """
        for x, y in loader:
            loss = F.mse_loss(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        """
        for i, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x.cuda()), y.cuda())
            (loss / count).backward()
            if (i + 1) % count == 0: optimizer.step(); optimizer.zero_grad()
        """,
    ),
    # The batch takes the name of what the loader gave; zero_grad stands before the backward.
    "batch norm": (
        IMAGES,
        """
        for epoch in range(4):
            running = 0.0
            for x, y in loader:
                x = x.cuda()
                y = y.cuda()
                out = model(x)
                loss = F.cross_entropy(out, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                running += loss.item() * x.size(0)
                hits = (out.argmax(1) == y).sum()
        """,
        """
        for epoch in range(4):
            running = 0.0
            for i, (x, y) in enumerate(loader):
                x = x.cuda()
                y = y.cuda()
                out = model(x)
                loss = F.cross_entropy(out, y)
                (loss / count).backward()
                if (i + 1) % count == 0: optimizer.step(); optimizer.zero_grad()
                running += loss.item() * x.size(0)
                hits = (out.argmax(1) == y).sum()
        """,
    ),
    "clipping and a scheduler": (
        TOKENS,
        """
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
        """,
        """
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        for i, (x, y) in enumerate(loader):
            x, y = x.cuda(), y.cuda()
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            (loss / count).backward()
            if (i + 1) % count == 0:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
        """,
    ),
    # Gradients that are zeroed, a loss that is kept for two rounds, and an evaluation.
    "an evaluation": (
        DENSE,
        """
        losses = collections.deque(maxlen=2)
        def train():
            for x, y in loader:
                x, y = x.cuda(), y.cuda()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                losses.append(loss.detach())
        def evaluate():
            model.eval()
            with torch.no_grad():
                return [model(x.cuda()) for x, y in loader]
        for epoch in range(2):
            model.train()
            train()
            evaluate()
        """,
        """
        losses = collections.deque(maxlen=2)
        def train():
            for i, (x, y) in enumerate(loader):
                x, y = x.cuda(), y.cuda()
                loss = F.mse_loss(model(x), y)
                (loss / count).backward()
                if (i + 1) % count == 0: optimizer.step(); optimizer.zero_grad(set_to_none=False)
                losses.append(loss.detach())
        def evaluate():
            model.eval()
            with torch.no_grad():
                return [model(x.cuda()) for x, y in loader]
        for epoch in range(2):
            model.train()
            train()
            evaluate()
        """,
    ),
    "autocast and a scaler": (
        TOKENS,
        """
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
        """
        scaler = torch.amp.GradScaler("cuda")
        for i, (x, y) in enumerate(loader):
            x, y = x.cuda(), y.cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            scaler.scale(loss / count).backward()
            if (i + 1) % count == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
    ),
}


def captured(folder: Path, name: str, text: str) -> str:
    path, out = folder / f"{name}.py", folder / f"{name}.step.json.gz"
    path.write_text(text)
    arguments = ["-o", str(out), "--", "python", str(path), "{batch}", str(COUNT)]
    assert fresh(main, arguments).value == 0
    return str(out)


def predicted(file: str, batch: int, *flags: str) -> dict[str, Any]:
    command = [find(), "predict", file, "--batch", str(batch), "--gpu", "H200", "--json", *flags]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr + told.stdout[-2000:]
    document: dict[str, Any] = json.loads(told.stdout)
    return document


@needs_program
@pytest.mark.parametrize(
    "loop",
    [
        "batch norm",
        *(pytest.param(n, marks=pytest.mark.nightly) for n in LOOPS if n != "batch norm"),
    ],
)
def test_the_script_edited_as_told(tmp_path: Path, loop: str) -> None:
    model, plain, edited = LOOPS[loop]
    texts = [HEAD + model + textwrap.dedent(text) for text in (plain, edited)]
    first = captured(tmp_path, "plain", texts[0])
    second = captured(tmp_path, "edited", texts[1])
    for batch in (4, 7):
        told = predicted(first, batch, "--accumulate", str(COUNT))
        true = predicted(second, batch)
        for what, off in (("allocated", 0.001), ("reserved", 0.005)):
            assert told[what] == pytest.approx(true[what], rel=off), (batch, what)
        for answer in (told, true):
            assert not (answer["growth"] or {}).get("ends_the_job")
