"""One process. Adds the losses up with their graphs, so that every step stays in memory."""

import torch

from gpt import Gpt, loss_of

model = Gpt().cuda()
optimizer = torch.optim.AdamW(model.parameters())
total = 0
for step in range(200):
    tokens = torch.randint(32000, (4, 512), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model, tokens)
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    total = total + loss
    if step % 10 == 0:
        print("step", step, "mean loss", float(total) / (step + 1))
