# Convolutional VAE with an exponential moving average of the weights
import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F

p = argparse.ArgumentParser()
p.add_argument("-b", "--batch-size", type=int, default=96)
p.add_argument("--steps", type=int, default=20)
p.add_argument("--latent", type=int, default=16)
p.add_argument("--kl", type=float, default=1e-3)
args = p.parse_args()


class ResBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(16, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(16, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class VAE(nn.Module):
    def __init__(self, ch=(64, 128, 256, 256), z=16):
        super().__init__()
        enc, dec = [nn.Conv2d(3, ch[0], 3, padding=1)], [nn.Conv2d(z, ch[-1], 3, padding=1)]
        for a, b in zip(ch, ch[1:]):
            enc += [ResBlock(a, b), nn.Conv2d(b, b, 3, stride=2, padding=1)]
        for a, b in zip(ch[::-1], ch[-2::-1]):
            dec += [nn.Upsample(scale_factor=2), ResBlock(a, b)]
        enc += [ResBlock(ch[-1], ch[-1]), nn.GroupNorm(16, ch[-1]), nn.SiLU(), nn.Conv2d(ch[-1], 2 * z, 1)]
        dec += [nn.GroupNorm(16, ch[0]), nn.SiLU(), nn.Conv2d(ch[0], 3, 3, padding=1)]
        self.encoder, self.decoder = nn.Sequential(*enc), nn.Sequential(*dec)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        logvar = logvar.clamp(-20, 10)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def images(steps, batch):
    gen = torch.Generator().manual_seed(5)
    for _ in range(steps):
        yield torch.rand(batch, 3, 128, 128, generator=gen) * 2 - 1


torch.manual_seed(5)
dev = "cuda"
vae = VAE(z=args.latent).to(dev)
ema = copy.deepcopy(vae).eval().requires_grad_(False)
opt = torch.optim.Adam(vae.parameters(), lr=2e-4, betas=(0.5, 0.9))

for it, x in enumerate(images(args.steps, args.batch_size)):
    x = x.to(dev)
    recon, mu, logvar = vae(x)
    rec = F.l1_loss(recon, x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()
    loss = rec + args.kl * kl
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), vae.parameters()):
            a.lerp_(b, 0.001)
    if it % 5 == 0:
        print(f"it {it} rec {rec.item():.4f} kl {kl.item():.4f}")
with torch.no_grad():
    print("sample", ema.decoder(torch.randn(4, args.latent, 16, 16, device=dev)).shape)
