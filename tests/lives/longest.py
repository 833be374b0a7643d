"""Texts of very different lengths, padded to the longest of their batch."""

import argparse

import torch
from common import VOCABULARY, Model, loss_of
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()


class Lengths(Dataset):
    """Most are short, and a few are as long as the model takes."""

    def __init__(self, count):
        draw = torch.Generator().manual_seed(1)
        self.lengths = torch.randint(32, 160, (count,), generator=draw)
        self.lengths[torch.randperm(count, generator=draw)[: count // 100]] = 1024

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.randint(0, VOCABULARY, (int(self.lengths[i]),))


def pad(texts):
    return pad_sequence(texts, batch_first=True)


torch.manual_seed(3)
loader = DataLoader(Lengths(2000), batch_size=args.batch_size, shuffle=True, collate_fn=pad)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step, ids in enumerate(loader):
    ids = ids.cuda()
    loss = loss_of(model(ids), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
