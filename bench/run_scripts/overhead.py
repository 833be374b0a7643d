#!/usr/bin/env python3
"""What recording costs: step times of GPT-2 and ResNet-50 with and without `plimsoll run`, in turns.

    overhead.py PROGRAM [REPEATS [JOB…]]     the table
    overhead.py --time JOB BATCH…            one process: prints the median step of each in milliseconds
"""

import gc
import statistics
import subprocess
import sys
import tempfile
import time

# GPT-2 of 124 M parameters and ResNet-50, at a batch that fills the GPU and at one that does not.
JOBS = {"gpt2": (16, 1), "resnet50": (256, 8)}
WAYS = ("without", "run", "run --modules")


def prepare(job, batch):
    import torch

    torch.manual_seed(0)
    if job == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config()).cuda()
        tokens = torch.randint(50257, (batch, 1024), device="cuda")
        return model, lambda: model(tokens, labels=tokens).loss
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")
    return model, lambda: torch.nn.functional.cross_entropy(model(images), labels)


def time_steps(job, batch, warm_up=10, steps=40):
    import torch

    model, loss_of = prepare(job, batch)
    optimizer = torch.optim.AdamW(model.parameters())
    times = []
    for step in range(warm_up + steps):
        begun = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step >= warm_up:
            times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


def measure(program, job, way):
    """By batch."""
    line = [sys.executable, __file__, "--time", job, *map(str, JOBS[job])]
    with tempfile.TemporaryDirectory() as folder:
        if way != "without":
            line = [program, *way.split(), "-q", "-o", folder, "--", *line]
        done = subprocess.run(line, capture_output=True, check=True)
    return dict(zip(JOBS[job], map(float, done.stdout.split())))


def main():
    program, repeats = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for job in sys.argv[3:] or JOBS:
        runs = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way in WAYS:
                runs[way].append(measure(program, job, way))
                print(f"{job} {way}: {runs[way][-1]}", flush=True)
        for batch in JOBS[job]:
            tell(job, batch, {way: [run[batch] for run in runs[way]] for way in WAYS})


def tell(job, batch, times):
    base = statistics.median(times["without"])
    for way in WAYS:
        step = statistics.median(times[way])
        print(
            f"{job:9} batch {batch:3} {way:14} {step:7.2f} ms "
            f"({min(times[way]):.2f} to {max(times[way]):.2f}) {(step / base - 1) * 100:+.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--time"]:
        for size in sys.argv[3:]:
            print(time_steps(sys.argv[2], int(size)))
            gc.collect()
    else:
        main()
