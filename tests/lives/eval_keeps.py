"""Puts the predictions of a whole evaluation together on the GPU."""

import argparse

import torch
from common import Model, Texts, loss_of
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

train = DataLoader(Texts(20 * args.batch_size), batch_size=args.batch_size, shuffle=True)
valid = DataLoader(Texts(1000), batch_size=args.batch_size)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def evaluate():
    model.eval()
    outputs, labels = [], []
    with torch.no_grad():
        for ids in valid:
            outputs.append(model(ids.cuda()))
            labels.append(ids)
    predicted = torch.cat(outputs).argmax(-1).cpu()
    model.train()
    return (predicted == torch.cat(labels)).float().mean().item()


for epoch in range(2):
    for ids in train:
        ids = ids.cuda()
        loss = loss_of(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), evaluate())
