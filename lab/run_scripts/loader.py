"""A loader with workers and pinned memory. One document in forty is far longer than the others."""

import torch
from torch.utils.data import DataLoader, Dataset

from gpt import Gpt, loss_of


class Documents(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        return torch.randint(32000, (2000 if i % 40 == 39 else 300,))


def collate(documents):
    return torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)


if __name__ == "__main__":
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(
        Documents(), batch_size=8, num_workers=4, pin_memory=True, collate_fn=collate
    )
    for tokens in loader:
        loss_of(model, tokens.cuda(non_blocking=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
