"""Evaluates with autograd on, and in larger batches than it trains with."""

import argparse

import torch
from common import Model, Texts, loss_of
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

train = DataLoader(Texts(20 * args.batch_size), batch_size=args.batch_size, shuffle=True)
valid = DataLoader(Texts(8 * args.batch_size), batch_size=2 * args.batch_size)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for epoch in range(2):
    model.train()
    for ids in train:
        ids = ids.cuda()
        loss = loss_of(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0.0
    for ids in valid:
        ids = ids.cuda()
        total += loss_of(model(ids), ids)
    print(epoch, loss.item(), total.item() / len(valid))
