"""accelerate's retries: the batch is halved at each out-of-memory until it fits."""

import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size

from gpt import Gpt, loss_of

accelerator = Accelerator()


@find_executable_batch_size(starting_batch_size=128)
def train(batch_size):
    print("batch", batch_size)
    accelerator.free_memory()
    model = Gpt(layers=4)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(5):
        accelerator.backward(loss_of(model, torch.randint(32000, (batch_size, 512), device="cuda")))
        optimizer.step()
        optimizer.zero_grad()


train()
