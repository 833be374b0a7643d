"""Four ranks under torchrun, over gloo so that one GPU will do. Rank 2 gets the long documents."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpt import Gpt, loss_of

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(rank % torch.cuda.device_count())
model = DistributedDataParallel(Gpt(layers=4).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    length = 256 + (step * 256 if rank == 2 else 0)
    tokens = torch.randint(32000, (8, min(length, 2000)), device="cuda")
    loss_of(model, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print("step", step)
