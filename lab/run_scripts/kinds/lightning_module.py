"""A small convolutional network under Lightning's Trainer."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        return torch.randn(3, 96, 96, generator=made), index % 10


class Network(pl.LightningModule):
    def __init__(self):
        super().__init__()
        layers, before = [], 3
        for width in (64, 128, 256):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(8, width), nn.GELU()]
            layers += [nn.AvgPool2d(2)]
            before = width
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 12 * 12, 10))

    def training_step(self, batch, _):
        images, labels = batch
        return F.cross_entropy(self.body(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


torch.manual_seed(0)
trainer = pl.Trainer(
    max_steps=6,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed" if args.amp else "32-true",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Network(), torch.utils.data.DataLoader(Pictures(), batch_size=args.batch))
