"""Gathers all weights and the optimizer's state into one tensor on the GPU before it saves."""

import argparse
import os
import tempfile

import torch
from common import Model, Texts, loss_of
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

loader = DataLoader(Texts(20 * args.batch_size), batch_size=args.batch_size, shuffle=True)
model = Model(width=2048, layers=12).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def save(path):
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    state = [s for s in optimizer.state.values()]
    first = torch.cat([s["exp_avg"].flatten() for s in state])
    second = torch.cat([s["exp_avg_sq"].flatten() for s in state])
    torch.save({"weights": weights, "first": first, "second": second}, path)


folder = tempfile.mkdtemp()
for epoch in range(2):
    for ids in loader:
        ids = ids.cuda()
        loss = loss_of(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(os.path.join(folder, "last.pt"))
    print(epoch, loss.item())
