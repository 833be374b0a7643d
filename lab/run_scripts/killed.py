"""Trains on and on, as a job does that a scheduler ends when its time is over."""

import torch

from gpt import Gpt, loss_of

model = Gpt(layers=4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss_of(model, torch.randint(32000, (8, 512), device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
