"""Keeps the logits of every step, to look at them later."""

import argparse

import torch
from common import Model, Texts, loss_of
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

loader = DataLoader(Texts(100 * args.batch_size), batch_size=args.batch_size)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
history = []
for step, ids in enumerate(loader):
    ids = ids.cuda()
    logits = model(ids)
    loss = loss_of(logits, ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(logits.detach())
    print(step, loss.item())
