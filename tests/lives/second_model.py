"""Trains, and then brings a larger teacher onto the same GPU to go on with distillation."""

import argparse

import torch
from common import Model, Texts, loss_of
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

loader = DataLoader(Texts(10 * args.batch_size), batch_size=args.batch_size, shuffle=True)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for ids in loader:
    ids = ids.cuda()
    loss = loss_of(model(ids), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("warm", loss.item())

teacher = Model(width=2048, layers=16).cuda().eval()
for ids in loader:
    ids = ids.cuda()
    with torch.no_grad():
        target = teacher(ids).softmax(-1)
    loss = nn.functional.kl_div(model(ids).log_softmax(-1), target, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("distilled", loss.item())
