"""Low-rank adapters over frozen weights in bf16; at the end a merged copy in fp32 is made."""

import argparse
import copy

import torch
from common import Model, Texts, loss_of
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()


class Adapted(nn.Module):
    def __init__(self, inner, rank=16):
        super().__init__()
        self.inner = inner
        options = {"device": inner.weight.device, "dtype": inner.weight.dtype}
        self.down = nn.Parameter(torch.randn(rank, inner.in_features, **options) * 0.01)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank, **options))

    def forward(self, x):
        return self.inner(x) + x @ self.down.T @ self.up.T

    def merged(self):
        self.inner.weight.data += self.up.data @ self.down.data
        return self.inner


model = Model(width=2048, layers=16).to("cuda", torch.bfloat16).requires_grad_(False)
for block in model.blocks:
    block.mlp[0] = Adapted(block.mlp[0])
    block.mlp[2] = Adapted(block.mlp[2])
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4)
loader = DataLoader(Texts(20 * args.batch_size), batch_size=args.batch_size, shuffle=True)
for ids in loader:
    ids = ids.cuda()
    loss = loss_of(model(ids).float(), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

merged = copy.deepcopy(model).float()
for block in merged.blocks:
    block.mlp[0] = block.mlp[0].merged()
    block.mlp[2] = block.mlp[2].merged()
torch.save(merged.state_dict(), "/dev/null")
