import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TAGS, WORDS, PAD = 45, 60000, 0


class Tagger(nn.Module):
    def __init__(self, embedding=512, hidden=1024, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, embedding, padding_idx=PAD)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, bidirectional=True)
        self.hidden = nn.Linear(2 * hidden, hidden)
        self.tags = nn.Linear(hidden, TAGS)

    def forward(self, words):
        states, _ = self.lstm(self.embedding(words))
        return self.tags(torch.tanh(self.hidden(states)))


def make_data(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(1, WORDS, (n, length), generator=g)
    tags = words % TAGS
    lengths = torch.randint(length // 2, length + 1, (n, 1), generator=g)
    padding = torch.arange(length)[None] >= lengths
    return TensorDataset(words.masked_fill(padding, PAD), tags.masked_fill(padding, -1))


def evaluate(model, loader, device):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for words, tags in loader:
            words, tags = words.to(device), tags.to(device)
            guess = model(words).argmax(-1)
            right += ((guess == tags) & (tags >= 0)).sum().item()
            total += (tags >= 0).sum().item()
    model.train()
    return right / total


def run():
    parser = argparse.ArgumentParser(description="part of speech tagger")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(2)
    device = torch.device("cuda", 0)
    model = Tagger()
    model.embedding.weight.requires_grad = False  # pretrained vectors
    model.to(device)
    criterion = nn.CrossEntropyLoss(ignore_index=-1)
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, 0.5)
    train = DataLoader(make_data(args.batch_size * args.steps, args.length, 1), args.batch_size, shuffle=True)
    dev = DataLoader(make_data(512, args.length, 2), 128)

    for step, (words, tags) in enumerate(train):
        words, tags = words.to(device), tags.to(device)
        scores = model(words)
        loss = criterion(scores.reshape(-1, TAGS), tags.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step % 4 == 0:
            print("step", step, "loss", loss.item())
    print("accuracy", evaluate(model, dev, device))


run()
