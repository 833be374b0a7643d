"""Contrastive training of an image and a text tower (a small CLIP)."""
import argparse
from math import log

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n=4096, vocab=20000):
        g = torch.Generator().manual_seed(21)
        self.images = torch.randn(32, 3, 160, 160, generator=g)
        self.texts = torch.randint(1, vocab, (n, 48), generator=g)
        self.lengths = torch.randint(8, 49, (n,), generator=g)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        text = self.texts[i].clone()
        text[self.lengths[i]:] = 0
        return self.images[i % 32].roll(i, -1), text


class Tower(nn.Module):
    def __init__(self, width, layers, heads, out):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.proj = nn.Linear(width, out, bias=False)

    def forward(self, x, padding=None):
        x = self.body(x, src_key_padding_mask=padding)
        return F.normalize(self.proj(x[:, 0]), dim=-1)


class CLIP(nn.Module):
    def __init__(self, vocab=20000):
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.image_pos = nn.Parameter(0.01 * torch.randn(101, 768))
        self.cls = nn.Parameter(torch.zeros(1, 1, 768))
        self.image = Tower(768, 12, 12, 512)
        self.words = nn.Embedding(vocab, 512, padding_idx=0)
        self.text_pos = nn.Parameter(0.01 * torch.randn(48, 512))
        self.text = Tower(512, 8, 8, 512)
        self.scale = nn.Parameter(torch.tensor(log(1 / 0.07)))

    def forward(self, images, tokens):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.image_pos
        a = self.image(x)
        b = self.text(self.words(tokens) + self.text_pos, padding=tokens == 0)
        return self.scale.exp().clamp(max=100) * a @ b.t()


def main(args):
    torch.manual_seed(21)
    model = CLIP().cuda()
    for p in model.words.parameters():
        p.requires_grad_(False)
    opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=5e-4, weight_decay=0.2)
    loader = DataLoader(Pairs(), batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=2)
    for step, (images, tokens) in enumerate(loader):
        if step == args.steps:
            break
        images, tokens = images.cuda(), tokens.cuda()
        logits = model(images, tokens)
        target = torch.arange(len(logits), device="cuda")
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, "loss", round(loss.item(), 4), "scale", round(model.scale.exp().item(), 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    main(parser.parse_args())
