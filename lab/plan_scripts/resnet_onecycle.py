"""ResNet-50, frozen first stage, label smoothing, one cycle, fp16 with a gradient scaler."""
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50


class Fake(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(13)
        self.images = torch.randint(0, 256, (128, 3, 224, 224), generator=g, dtype=torch.uint8)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.images[i % 128], (i * 7919) % 1000


ap = argparse.ArgumentParser()
ap.add_argument("--batch-size", type=int, default=384)
ap.add_argument("--steps", type=int, default=20)
ap.add_argument("--max-lr", type=float, default=0.4)
opt = ap.parse_args()

torch.manual_seed(13)
device = "cuda"
model = resnet50(weights=None)
for name, parameter in model.named_parameters():
    if name.startswith(("conv1", "bn1", "layer1")):
        parameter.requires_grad = False
model = model.to(device)
mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
std = torch.tensor([58.4, 57.1, 57.4], device=device).view(1, 3, 1, 1)

loader = DataLoader(Fake(opt.batch_size * opt.steps), batch_size=opt.batch_size, shuffle=True, num_workers=4,
                    pin_memory=True, drop_last=True)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9, nesterov=True,
                            weight_decay=5e-5)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, opt.max_lr, total_steps=opt.steps)
scaler = torch.amp.GradScaler("cuda")

model.train()
start = time.time()
for step, (images, labels) in enumerate(loader):
    images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    images = (images.float() - mean) / std
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(images)
        loss = criterion(output, labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    print(f"{step} loss {loss.item():.4f} {time.time() - start:.1f} s")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "resnet.pt")
