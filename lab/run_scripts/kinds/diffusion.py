"""A U-Net learns to take noise away, and every ten steps draws more samples than a batch has."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=11)
args = parser.parse_args()
ROUNDS = 200


def stage(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.down1, self.down2 = stage(4, width), stage(width, 2 * width)
        self.middle = stage(2 * width, 4 * width)
        self.up2 = stage(6 * width, 2 * width)
        self.up1 = stage(3 * width, width)
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x, t):
        one = self.down1(torch.cat([x, t.view(-1, 1, 1, 1).expand_as(x[:, :1])], 1))
        two = self.down2(F.avg_pool2d(one, 2))
        x = self.middle(F.avg_pool2d(two, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), two], 1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), one], 1))
        return self.last(x)


@torch.no_grad()
def sample(model, count):
    x = torch.randn(count, 3, 128, 128, device="cuda")
    for round in reversed(range(ROUNDS)):
        t = torch.full((count,), round / ROUNDS, device="cuda")
        x = x - model(x, t) / ROUNDS
    return x


torch.manual_seed(0)
model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    images = torch.randn(args.batch, 3, 128, 128).cuda()
    noise, t = torch.randn_like(images), torch.rand(args.batch, device="cuda")
    mixed = images + noise * t.view(-1, 1, 1, 1)
    optimizer.zero_grad()
    loss = F.mse_loss(model(mixed, t), noise)
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        torch.save(sample(model, 4 * args.batch).cpu(), "/tmp/samples.pt")
print("loss", loss.item())
