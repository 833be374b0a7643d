"""A generator that is trained once for every five steps of its critic."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()


def up(a, b):
    return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())


def down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2))


generator = nn.Sequential(
    nn.ConvTranspose2d(128, 1024, 4), up(1024, 1024), up(1024, 512), up(512, 512),
    up(512, 256), up(256, 128), nn.Conv2d(128, 3, 3, padding=1), nn.Tanh(),
).cuda()
critic = nn.Sequential(
    down(3, 32), down(32, 64), down(64, 64), down(64, 64), nn.Flatten(), nn.Linear(64 * 64, 1)
).cuda()
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))

images = TensorDataset(torch.randn(20 * args.batch_size, 3, 128, 128))
loader = DataLoader(images, batch_size=args.batch_size, shuffle=True)
for step, (real,) in enumerate(loader):
    real = real.cuda()
    noise = torch.randn(real.shape[0], 128, 1, 1, device="cuda")
    with torch.no_grad():
        fake = generator(noise)
    loss = critic(fake).mean() - critic(real).mean()
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    for p in critic.parameters():
        p.data.clamp_(-0.01, 0.01)
    if step % 5 == 4:
        noise = torch.randn(real.shape[0], 128, 1, 1, device="cuda")
        loss_g = -critic(generator(noise)).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        print(step, loss.item(), loss_g.item())
