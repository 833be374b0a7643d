#!/usr/bin/env python3
"""Milliseconds a step of plimsoll::train beside the same models in Python (train/bench/train_twins.py), on a GPU.

    train/bench/train_speed.py build/train-release/train/train_bench

First what `train_bench speed` measures, then Python, eager with a fused optimizer, on the same batches. Then half of the
memory: what Trainer does with half of what the plain step held, against torch.utils.checkpoint on every block of the
same batch in Python, under the same limit.
"""
import gc
import statistics
import subprocess
import sys
import time

import torch

import train_twins

ROUND_SECONDS = 0.25
# As train/bench/train_jobs.h has them.
SIZES = {"gpt": ["--width", "1024", "--heads", "16"]}
# Job, batch, letters of `train_bench run`.
WITHIN_HALF = (("gpt", 32, "-"), ("resnet50", 128, "c"), ("own", 32, "-"), ("unet", 16, "-"))


def python_step(model, batch, precision, channels_last, checkpoint="none", limit=None):
    """Milliseconds and bytes held; None where memory ran out."""
    words = [model, "--batch", str(batch), "--precision", precision, "--checkpoint", checkpoint, *SIZES.get(model, [])]
    if channels_last:
        words.append("--channels-last")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total if limit else 1.0)
    try:
        run = train_twins.Run(train_twins.arguments(words))
        run.times(1, 3)
        steps = min(100, max(2, int(ROUND_SECONDS * 1000 / run.times(1, 1)[0])))
        return statistics.median(run.times(3, steps)), torch.cuda.max_memory_reserved()
    except torch.cuda.OutOfMemoryError:
        return None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def bench_rows(bench):
    """The cells of each row that `train_bench speed` prints; shown on stderr as they come."""
    rows = []
    with subprocess.Popen([bench, "speed"], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            if line.startswith("|"):
                rows.append(line.strip("| \n").split(" | "))
    if process.returncode:
        sys.exit(f"{bench} speed failed")
    # Its heading and the line below are no rows.
    return rows[2:]


def without_budget(bench):
    rows = bench_rows(bench)
    print("| model | batch | precision | loop | Trainer | Trainer, graph | Python | loop | Trainer | graph |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model, batch, precision, *numbers in rows:
        times = [float(number) for number in numbers[:3]]
        python, _ = python_step(model.removesuffix("-light"), int(batch), precision.split()[0], "last" in precision)
        against = " | ".join(f"{100 * (ms / python - 1):+.1f} %" for ms in times)
        print(f"| {model} | {batch} | {precision} | {' | '.join(f'{ms:.2f}' for ms in times)} | {python:.2f} | {against} |",
              flush=True)


def trainer_step(bench, job, batch, budget, plain, letters):
    """Milliseconds, bytes held, levers; None where memory ran out."""
    words = [bench, "run", "cuda:0", job, str(batch), str(budget), str(int(plain)), "bf16", letters, "-"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return None
    _, held, milliseconds, _, levers = done.stdout.strip().split(" ", 4)
    return float(milliseconds), int(held), levers


def within_half(bench):
    print("\n| model | batch | budget, MiB | plain | Trainer | Trainer, graph | levers | Python, checkpointed |")
    print("|---|---|---|---|---|---|---|---|")
    for job, batch, letters in WITHIN_HALF:
        plain_ms, plain_held, _ = trainer_step(bench, job, batch, 0, True, letters)
        budget = plain_held // 2
        cells = [f"{plain_ms:.2f}"]
        levers = ""
        for graph in ("", "g"):
            chosen = trainer_step(bench, job, batch, budget, False, letters + graph)
            cells.append(f"{chosen[0]:.2f}, holds {chosen[1] / 2**20:.0f}" if chosen else "runs out")
            levers = chosen[2] if chosen else levers
        python = python_step(job, batch, "bf16", "c" in letters, checkpoint="all", limit=budget)
        cells.append(levers)
        cells.append(f"{python[0]:.2f}, holds {python[1] / 2**20:.0f}" if python else "runs out")
        precision = " channels-last" if "c" in letters else ""
        print(f"| {job}{precision} | {batch} | {budget / 2**20:.0f} | {' | '.join(cells)} |", flush=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    began = time.time()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n", flush=True)
    without_budget(sys.argv[1])
    within_half(sys.argv[1])
    print(f"\n{time.time() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
