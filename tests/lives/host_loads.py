"""Reads a checkpoint of weights and optimizer to the host twice before anything is on the GPU."""

import argparse
import os
import tempfile

import torch
from common import Model, Texts, loss_of
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()

path = os.path.join(tempfile.mkdtemp(), "start.pt")
model = Model(width=2048, layers=16)
torch.save({"model": model.state_dict(), "ema": model.state_dict()}, path)

checkpoint = torch.load(path, map_location="cpu")
ema = {name: value.clone().double() for name, value in checkpoint["ema"].items()}
model.load_state_dict(checkpoint["model"])
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(Texts(20 * args.batch_size), batch_size=args.batch_size, shuffle=True)
for ids in loader:
    ids = ids.cuda()
    loss = loss_of(model(ids), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
