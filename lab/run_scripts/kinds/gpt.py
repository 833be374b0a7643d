"""A GPT in a plain loop, in float32 or with bfloat16 autocast around its forward and loss."""

import argparse
import contextlib
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from gpt import Gpt, loss_of  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
model = Gpt().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(args.steps):
    tokens = torch.randint(0, 32000, (args.batch, 1025)).cuda()
    autocast = torch.autocast("cuda", dtype=torch.bfloat16)
    with autocast if args.amp else contextlib.nullcontext():
        loss = loss_of(model, tokens)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("loss", loss.item())
