#!/usr/bin/env python3
"""The library's GPT and U-Net (train/models), and the ResNet-50 and the transformer of train/bench/train_models.h,
written plainly in Python and trained eagerly.

    train/bench/train_twins.py gpt --batch 8 --precision bf16 --checkpoint all
    train/bench/train_twins.py unet --batch 4 --image 512
    train/bench/train_twins.py resnet50 --batch 32 --precision bf16 --channels-last
    train/bench/train_twins.py own --batch 8

What plimsoll::train is measured against (train/bench/train_speed.py does it). Same modules, in the same order, under the same names and made from the
same random numbers, so that with one seed both compute the same losses (train/models/*_test.cc hold some of
them). Prints the time of a step and the peak of memory; runs on a CPU too.
"""
import argparse
import json
import math
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def groups(policy, blocks):
    """Lengths of what is checkpointed together; None: nothing is."""
    if policy == "none":
        return None
    if policy == "all":
        return 1
    if policy == "sqrt":
        return max(1, round(math.sqrt(blocks)))
    return int(policy.removeprefix("every:"))


class GptBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x):
        samples, positions, width = x.shape
        q, k, v = (part.view(samples, positions, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0,
                                               is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(samples, positions, width)
        return F.dropout(self.project(mixed), self.dropout, self.training)

    def mlp(self, x):
        return F.dropout(self.down(F.gelu(self.up(x), approximate="tanh")), self.dropout, self.training)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.checkpoint, self.dropout = groups(a.checkpoint, a.layers), a.dropout
        self.tokens = nn.Embedding(a.vocabulary, a.width)
        self.positions = nn.Embedding(a.context, a.width)
        self.blocks = nn.ModuleList(GptBlock(a.width, a.heads, a.dropout) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("project.weight", "down.weight"))
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * a.layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        where = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.tokens(tokens) + self.positions(where), self.dropout, self.training)
        if self.checkpoint is None:
            for block in self.blocks:
                x = block(x)
        else:
            for begin in range(0, len(self.blocks), self.checkpoint):
                x = checkpoint(self.run, begin, x, use_reentrant=False)
        return F.linear(self.norm(x), self.tokens.weight)

    def run(self, begin, x):
        for block in self.blocks[begin:begin + self.checkpoint]:
            x = block(x)
        return x

    def loss(self, tokens, targets):
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

    @staticmethod
    def batch(a):
        text = torch.randint(a.vocabulary, (a.batch, a.context + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


class UNet(nn.Module):
    downs = 4

    def __init__(self, a):
        super().__init__()
        self.checkpoint = a.checkpoint != "none"
        self.down, self.up, self.merge = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level in range(self.downs + 1):
            before = a.width << (level - 1) if level else a.channels
            self.down.append(self.double_convolution(before, a.width << level, a.normalization))
        for level in reversed(range(self.downs)):
            below, here = a.width << (level + 1), a.width << level
            self.up.append(nn.ConvTranspose2d(below, here, 2, stride=2))
            self.merge.append(self.double_convolution(below, here, a.normalization))
        self.head = nn.Conv2d(a.width, a.classes, 1)

    @staticmethod
    def double_convolution(before, after, normalization):
        parts = []
        for channels in (before, after):
            parts.append(nn.Conv2d(channels, after, 3, padding=1, bias=normalization == "none"))
            if normalization == "group":
                parts.append(nn.GroupNorm(math.gcd(8, after), after))
            elif normalization == "batch":
                parts.append(nn.BatchNorm2d(after))
            parts.append(nn.ReLU(inplace=True))
        return nn.Sequential(*parts)

    def go_down(self, level, x):
        return self.down[level](F.max_pool2d(x, 2) if level else x)

    def go_up(self, step, below, skip):
        return self.merge[step](torch.cat((skip, self.up[step](below)), 1))

    def block(self, function, *inputs):
        return checkpoint(function, *inputs, use_reentrant=False) if self.checkpoint else function(*inputs)

    def forward(self, x):
        skips = []
        for level in range(self.downs + 1):
            x = self.block(self.go_down, level, x)
            skips.append(x)
        skips.pop()
        for step in range(self.downs):
            x = self.block(self.go_up, step, x, skips.pop())
        return self.head(x)

    def loss(self, images, masks):
        return F.cross_entropy(self(images), masks)

    @staticmethod
    def batch(a):
        return (torch.rand(a.batch, a.channels, a.image, a.image),
                torch.randint(a.classes, (a.batch, a.image, a.image)))


def convolve(before, after, kernel, stride):
    return [nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(after)]


class Bottleneck(nn.Module):
    def __init__(self, before, middle, stride, shortcut):
        super().__init__()
        self.main = nn.Sequential(*convolve(before, middle, 1, 1), nn.ReLU(), *convolve(middle, middle, 3, stride),
                                  nn.ReLU(), *convolve(middle, 4 * middle, 1, 1))
        self.shortcut = nn.Sequential(*convolve(before, 4 * middle, 1, stride)) if shortcut else nn.Identity()

    def forward(self, x):
        return F.relu(self.main(x) + self.shortcut(x))


class ResNet50(nn.Module):
    depths = (3, 4, 6, 3)

    def __init__(self, a):
        super().__init__()
        self.checkpoint = a.checkpoint != "none"
        self.stem = nn.Sequential(*convolve(a.channels, a.width, 7, 2))
        self.blocks = nn.ModuleList()
        before = a.width
        for stage, depth in enumerate(self.depths):
            middle = a.width << stage
            for i in range(depth):
                self.blocks.append(Bottleneck(before, middle, 2 if stage and not i else 1, shortcut=not i))
                before = 4 * middle
        self.classify = nn.Linear(before, a.classes)

    def begin(self, x):
        return F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)

    def forward(self, x):
        for block in (self.begin, *self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return self.classify(x.mean((2, 3)))

    def loss(self, images, classes):
        return F.cross_entropy(self(images), classes)

    @staticmethod
    def batch(a):
        return torch.randn(a.batch, a.channels, a.image, a.image), torch.randint(a.classes, (a.batch,))


class OwnLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v)
        y = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return y + self.down(F.gelu(self.up(self.norm2(y))))


class OwnTransformer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.checkpoint = a.checkpoint != "none"
        self.embed = nn.Linear(a.inputs, a.width)
        self.layers = nn.ModuleList(OwnLayer(a.width, a.heads) for _ in range(a.layers))
        self.classify = nn.Linear(a.width, a.classes)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoint else layer(x)
        return self.classify(x.mean(1))

    def loss(self, sequences, classes):
        return F.cross_entropy(self(sequences), classes)

    @staticmethod
    def batch(a):
        return torch.randn(a.batch, a.context, a.inputs), torch.randint(a.classes, (a.batch,))


MODELS = {"gpt": Gpt, "unet": UNet, "resnet50": ResNet50, "own": OwnTransformer}
# Where a model has another size than the GPT, or none that the GPT has.
SIZES = {"gpt": {"width": 768, "layers": 12, "heads": 12, "context": 1024},
         "unet": {"width": 64, "classes": 2, "image": 512},
         "resnet50": {"width": 64, "classes": 1000, "image": 224},
         "own": {"width": 1024, "layers": 16, "heads": 16, "context": 512, "inputs": 64, "classes": 100}}


class Run:
    """A model in training, step by step on the same batch."""

    def __init__(self, a):
        torch.manual_seed(a.seed)
        kind = MODELS[a.model]
        self.device = torch.device(a.device)
        self.model = kind(a).to(self.device)
        self.batch = [t.to(self.device) for t in kind.batch(a)]
        if a.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.batch[0] = self.batch[0].to(memory_format=torch.channels_last)
        how = {"fused": {"fused": True}, "foreach": {"foreach": True}}[a.optimizer]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=a.learning_rate, **how)
        self.dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[a.precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=a.precision == "fp16")

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            loss = self.model.loss(*self.batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def times(self, rounds, steps):
        """Milliseconds a step, of each round. The device is waited for only at a round's end."""
        result = []
        for _ in range(rounds):
            self.wait()
            begin = time.perf_counter()
            for _ in range(steps):
                self.step()
            self.wait()
            result.append((time.perf_counter() - begin) * 1000 / steps)
        return result

    def memory(self):
        if self.device.type == "cuda":
            return {"peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}
        return {"peak_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--checkpoint", default="none", help="none, all; of a GPT also sqrt, every:K")
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--losses", type=int, default=0, help="print the losses of so many steps, and stop")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--channels-last", action="store_true")
    for size in ("width", "layers", "heads", "context", "inputs", "classes", "image"):
        own = ", ".join(f"{sizes[size]} of {model}" for model, sizes in SIZES.items() if size in sizes)
        parser.add_argument(f"--{size}", type=int, help=f"default: {own}")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--normalization", choices=("group", "batch", "none"), default="group")
    a = parser.parse_args(words)
    for size, value in SIZES[a.model].items():
        if getattr(a, size) is None:
            setattr(a, size, value)
    return a


def main():
    a = arguments()
    run = Run(a)
    if a.losses:
        print(" ".join(f"{run.step().item():.6f}" for _ in range(a.losses)))
        return
    # The first steps make the optimizer's state and choose algorithms.
    run.times(1, 3)
    times = run.times(a.rounds, a.steps)
    result = {"model": a.model, "torch": torch.__version__, "batch": a.batch, "precision": a.precision,
              "checkpoint": a.checkpoint, "optimizer": a.optimizer, "ms_per_step": statistics.median(times),
              "fastest": min(times), "slowest": max(times), **run.memory()}
    if a.json:
        print(json.dumps(result))
        return
    memory = ", ".join(f"{name.replace('_', ' ')} {n / 2**20:.1f} MiB" for name, n in run.memory().items())
    print(f"{a.model} batch {a.batch} {a.precision} checkpoint {a.checkpoint} {a.optimizer}: "
          f"{result['ms_per_step']:.2f} ms per step ({min(times):.2f} to {max(times):.2f}), {memory}")


if __name__ == "__main__":
    main()
