"""torch.compile, and a batch that does not fit."""

import torch

from gpt import Gpt, loss_of

model = Gpt(layers=3).cuda()
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(model)
for batch in (4, 4, 4, 128):
    tokens = torch.randint(32000, (batch, 513), device="cuda")
    loss_of(compiled, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("batch", batch)
