"""U-Net with batch norm for street scenes, cross-entropy and dice, validation after each epoch."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 19


def double_conv(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        sizes = [width * 2 ** i for i in range(depth + 1)]
        self.inc = double_conv(3, width)
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip(sizes, sizes[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(sizes, sizes[1:]))
        self.fuse = nn.ModuleList(double_conv(2 * a, a) for a in sizes[:-1])
        self.outc = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for block in self.down:
            skips.append(block(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, fuse in zip(reversed(self.up), reversed(self.fuse)):
            x = fuse(torch.cat([skips.pop(), up(x)], dim=1))
        return self.outc(x)


def dice_loss(logits, target):
    probs = logits.softmax(1)
    onehot = F.one_hot(target, CLASSES).permute(0, 3, 1, 2).float()
    inter = (probs * onehot).sum((2, 3))
    return 1 - ((2 * inter + 1) / (probs.sum((2, 3)) + onehot.sum((2, 3)) + 1)).mean()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits = []
    for image, target in loader:
        prediction = model(image.cuda()).argmax(1)
        hits.append((prediction == target.cuda()).float().mean())
    model.train()
    return torch.stack(hits).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--size", type=int, default=256)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--steps", type=int, default=10, help="per epoch")
    args = ap.parse_args()

    torch.manual_seed(3)
    n = args.batch_size * args.steps
    train = TensorDataset(torch.randn(n, 3, args.size, args.size), torch.randint(0, CLASSES, (n, args.size, args.size)))
    val = TensorDataset(torch.randn(24, 3, args.size, args.size), torch.randint(0, CLASSES, (24, args.size, args.size)))
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val, batch_size=8)

    model = UNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    total = args.epochs * args.steps
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=0.9)
    for epoch in range(args.epochs):
        for image, target in train_loader:
            image, target = image.cuda(non_blocking=True), target.cuda(non_blocking=True)
            logits = model(image)
            loss = F.cross_entropy(logits, target) + dice_loss(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"epoch {epoch} loss {loss.item():.4f}")
        print(f"epoch {epoch} pixel accuracy {validate(model, val_loader):.4f}")


if __name__ == "__main__":
    main()
