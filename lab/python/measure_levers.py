"""Levers that the shared data has no runs of, measured on a GPU: measure_levers.py TOOLS > FILE.

One line of JSON for each job and change (offload of activations, updates in the backward,
Adafactor, empty_cache in every step), each in a process of its own; and the rates of copies
between pinned memory and the device.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

GPT2 = {"family": "hf", "model": "gpt2", "batch": 8, "seq": 1024}
UNET = {"family": "unet", "model": "unet", "batch": 8, "img": 512}
JOBS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2_bf16": {**GPT2, "dtype": "amp_bf16"},
    "unet": UNET,
}
CHANGES = ("base", "offload", "in_backward", "adafactor", "empty_cache", "empty_cache_phases")
STEPS = 8


def copy_rates() -> dict[str, Any]:
    import torch

    size = 256 << 20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    rates = {}
    for name, to, source in (("to_host", host, device), ("to_device", device, host)):
        to.copy_(source)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        rates[name] = 10 * size / (time.perf_counter() - start)
    small = torch.empty(64, device="cuda")
    target = torch.empty(64, pin_memory=True)
    start = time.perf_counter()
    for _ in range(1000):
        target.copy_(small)
    rates["small_us"] = (time.perf_counter() - start) * 1e3
    return {"job": "copies", **rates}


def one(tools: str, job: str, change: str) -> dict[str, Any]:
    import torch

    sys.path.insert(0, tools)
    import zoo

    spec = JOBS[job]
    torch.manual_seed(0)
    model, make, loss = zoo.build(spec)
    model.cuda()
    parameters = list(model.parameters())
    fused: dict[str, Any] = {"lr": 1e-4, "fused": True}
    if change == "in_backward":
        optimizers = {p: torch.optim.AdamW([p], **fused) for p in parameters}

        def update(p: torch.Tensor) -> None:
            optimizers[p].step()
            p.grad = None

        for p in parameters:
            p.register_post_accumulate_grad_hook(update)
        optimizer = None
    elif change == "adafactor":
        optimizer = torch.optim.Adafactor(parameters, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    half = spec.get("dtype") == "amp_bf16"
    empty = torch.cuda.empty_cache
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        x, y = make(spec["batch"])
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            if change == "offload":
                with torch.autograd.graph.save_on_cpu(pin_memory=True):
                    value = loss(model, x, y)
            else:
                value = loss(model, x, y)
        if change == "empty_cache_phases":
            empty()
        value.backward()
        if change == "empty_cache_phases":
            empty()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if change.startswith("empty_cache"):
            empty()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return {
        "job": job,
        "change": change,
        "spec": spec,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "step_ms": statistics.median(times[3:]),
    }


def main() -> int:
    tools = sys.argv[1]
    if len(sys.argv) == 4:
        job, change = sys.argv[2:]
        print(json.dumps(copy_rates() if job == "copies" else one(tools, job, change)), flush=True)
        return 0
    for job, change in [("copies", "-"), *((j, c) for j in JOBS for c in CHANGES)]:
        run = subprocess.run(
            [sys.executable, __file__, tools, job, change], capture_output=True, text=True
        )
        print(
            run.stdout.strip()
            or json.dumps({"job": job, "change": change, "failed": run.stderr[-300:]}),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
