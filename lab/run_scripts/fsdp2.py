"""Two ranks of FSDP2 over gloo. The batch grows until it does not fit."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gpt import Gpt, loss_of

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(rank % torch.cuda.device_count())
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = Gpt(layers=6).cuda()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for batch in (4, 4, 4, 8, 16, 32, 64):
    tokens = torch.randint(32000, (batch, 1024), device="cuda")
    loss_of(model, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print("batch", batch)
