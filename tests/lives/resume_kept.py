"""Goes on from a checkpoint that it read to the GPU, and keeps what it read."""

import argparse
import os
import tempfile

import torch
from common import Model, Texts, loss_of
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

loader = DataLoader(Texts(10 * args.batch_size), batch_size=args.batch_size, shuffle=True)
model = Model(width=2048, layers=12).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def train_epoch():
    for ids in loader:
        ids = ids.cuda()
        loss = loss_of(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


path = os.path.join(tempfile.mkdtemp(), "last.pt")
print(train_epoch())
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

checkpoint = torch.load(path, map_location="cuda")
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
print(train_epoch())
