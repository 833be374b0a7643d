"""A ResNet learns from a larger one that is evaluated beside it; two passes a step."""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.beside = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.beside(x))


def network(widths):
    layers, before = [nn.Conv2d(3, widths[0], 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], widths[0]
    for number, width in enumerate(widths):
        layers += [Block(before, width, 1 if number == 0 else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


torch.manual_seed(0)
student = network([64, 128, 256, 512]).cuda()
teacher = network([128, 256, 512, 1024]).cuda().eval()
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
for step in range(args.steps):
    optimizer.zero_grad()
    for _ in range(2):
        images = torch.randn(args.batch, 3, 224, 224).cuda()
        labels = torch.randint(0, 1000, (args.batch,)).cuda()
        autocast = torch.autocast("cuda", dtype=torch.bfloat16)
        with autocast if args.amp else contextlib.nullcontext():
            with torch.no_grad():
                wanted = teacher(images).softmax(1)
            logits = student(images)
            loss = F.cross_entropy(logits, labels)
            loss = loss + F.kl_div(logits.log_softmax(1), wanted, reduction="batchmean")
        (loss / 2).backward()
    optimizer.step()
print("loss", loss.item())
