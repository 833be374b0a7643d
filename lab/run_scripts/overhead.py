#!/usr/bin/env python3
"""What recording costs: step times of GPT-2 and ResNet-50 with and without `plimsoll run`, and in an environment that has
the hook of `plimsoll hook install`, in turns.

    overhead.py PROGRAM [REPEATS [JOB…]]     the table; - as PROGRAM leaves `plimsoll run` out
    overhead.py --time JOB BATCH…            one process: prints the median step of each in milliseconds
"""

import gc
import os
import pathlib
import site
import statistics
import subprocess
import sys
import tempfile
import time
import venv

# GPT-2 of 124 M parameters and ResNet-50, at a batch that fills the GPU and at one that does not.
JOBS = {"gpt2": (16, 1), "resnet50": (256, 8)}
WAYS = ("without", "hook", "run", "run --modules")
INSTALL = (
    pathlib.Path(__file__).parents[2] / "python/plimsoll/recording/hook/plimsoll_install.py"
)


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


def with_hook(folder):
    """An environment of its own beside this one, with the hook."""
    venv.create(folder, system_site_packages=True, with_pip=False)
    python = os.path.join(folder, "bin", "python")
    asked = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run([python, "-c", asked], capture_output=True, check=True, text=True)
    # Where this Python is of an environment itself, that one's packages too.
    with open(os.path.join(packages.stdout.strip(), "beside.pth"), "w", encoding="utf-8") as file:
        file.write("\n".join(site.getsitepackages()) + "\n")
    subprocess.run([python, INSTALL, "install"], capture_output=True, check=True)
    return python


def measure(program, hooked, job, way):
    """By batch."""
    line = [sys.executable, __file__, "--time", job, *map(str, JOBS[job])]
    environment = {**os.environ}
    with tempfile.TemporaryDirectory() as folder:
        if way == "hook":
            line[0] = hooked
            environment["PLIMSOLL_RUN"] = os.path.join(folder, "record")
        elif way != "without":
            line = [program, *way.split(), "-q", "-o", folder, "--", *line]
        done = subprocess.run(line, capture_output=True, check=True, env=environment)
        if way == "hook":
            assert any(pathlib.Path(folder, "record").glob("*.pickle")), "nothing was recorded"
    return dict(zip(JOBS[job], map(float, done.stdout.split())))


def main():
    program, repeats = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ways = WAYS if program != "-" else WAYS[:2]
    with tempfile.TemporaryDirectory() as folder:
        hooked = with_hook(folder)
        for job in sys.argv[3:] or JOBS:
            runs = {way: [] for way in ways}
            for _ in range(repeats):
                for way in ways:
                    runs[way].append(measure(program, hooked, job, way))
                    print(f"{job} {way}: {runs[way][-1]}", flush=True)
            for batch in JOBS[job]:
                tell(job, batch, {way: [run[batch] for run in runs[way]] for way in ways})


def tell(job, batch, times):
    base = statistics.median(times["without"])
    for way in times:
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
