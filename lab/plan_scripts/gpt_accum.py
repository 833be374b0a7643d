"""Character level GPT, gradient accumulation and clipping, bf16 autocast."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, n, length, vocab):
        self.data = torch.randint(0, vocab, (n, length + 1), generator=torch.Generator().manual_seed(11))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i, :-1], self.data[i, 1:]


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.h = h
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.fc, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab, length, d, h, layers):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


ap = argparse.ArgumentParser()
ap.add_argument("--batch-size", type=int, default=12)
ap.add_argument("--accumulate", type=int, default=4)
ap.add_argument("--steps", type=int, default=15)
ap.add_argument("--length", type=int, default=1024)
ap.add_argument("--vocab", type=int, default=16000)
args = ap.parse_args()

torch.manual_seed(11)
model = GPT(args.vocab, args.length, 1024, 16, 12).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min(1, (s + 1) / 3) * 0.5 * (1 + math.cos(math.pi * s / (args.steps + 1))))
data = Tokens(args.batch_size * args.accumulate * args.steps, args.length, args.vocab)
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)

running = 0.0
optimizer.zero_grad()
for i, (x, y) in enumerate(loader):
    x, y = x.to("cuda"), y.to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x, y)
    (loss / args.accumulate).backward()
    running += loss.item() / args.accumulate
    if (i + 1) % args.accumulate == 0:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"step {(i + 1) // args.accumulate} loss {running:.4f} norm {norm.item():.3f}")
        running = 0.0
