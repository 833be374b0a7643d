"""A training script as people write it: arguments, a loader with workers, autocast and a scaler,
metrics, a checkpoint."""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset

from gpt import Gpt, loss_of


class Tokens(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        return torch.randint(32000, (512,))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Tokens(), arguments.batch_size, shuffle=True, num_workers=4, pin_memory=True
    )
    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda")
    mean = 0.0
    for step, tokens in zip(range(arguments.steps), loader):
        tokens = tokens.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(model, tokens)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        mean += (loss.item() - mean) / (step + 1)
        if step % 10 == 0:
            print(f"step {step}: loss {mean:.3f}")
            torch.save(model.state_dict(), "checkpoint.pt")


if __name__ == "__main__":
    main()
