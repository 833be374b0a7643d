"""Times the chunks of timing_shapes.py on the GPU.

    time_shapes.py OUT.jsonl [--seconds N] [--workers N]     a line a chunk
    time_shapes.py OUT.step.json.xz --join OUT.jsonl         as lab/fit_step_time reads it

Reading a profile takes the host far longer than the calls take the GPU: several processes take
turns at the GPU, and read what they measured meanwhile. A chunk that has the GPU for too long ends
its process, and another one takes its place.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from time_operators import Told, _kernels, write_times
from timing_shapes import LIMITS, Chunk, chunks

_PROFILED = 2
#: That one chunk may have the GPU; libraries are loaded by the first of a process.
_MOST_SECONDS = 14.0


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        watch = threading.Timer(_MOST_SECONDS, os._exit, (3,))
        watch.daemon = True
        watch.start()
        yield
        watch.cancel()


def measure(chunk: Chunk, lock: Path, device: str = "cuda") -> dict[str, Any]:
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = chunk.tf32
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    told = Told()
    failed: collections.Counter[str] = collections.Counter()
    with _alone(lock):
        start = time.time()
        cases = []
        for case in chunk.cases(device):
            try:
                case()
                wait()
                cases.append(case)
            except RuntimeError as error:
                failed[str(error)[:80]] += 1
        with torch.profiler.profile(activities=activities) as profile, told:
            for _ in range(_PROFILED):
                for case in cases:
                    case()
            wait()
        held = time.time() - start
    rows: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0, 0.0])
    for event in profile.events():
        if event.name.startswith("#") and event.device_type == torch.autograd.DeviceType.CPU:
            kernels, spent = _kernels(event)
            row = rows[told.calls[int(event.name[1:])]]
            row[0] += 1
            row[1] += kernels
            row[2] += spent
    return {
        "job": chunk.name,
        "settings": {"aside": 3, "cudnn_tf32": chunk.tf32},
        "wall_ms": 0,
        "busy_ms": 0,
        "kernels": 0,
        "held_s": round(held, 2),
        "failed": dict(failed),
        "rows": [
            [json.loads(key), calls / _PROFILED, kernels / calls, round(spent / calls, 3)]
            for key, (calls, kernels, spent) in rows.items()
            if kernels or device == "cpu"
        ],
    }


def _work(queue: Any, out: str, lock: str, until: float, device: str) -> None:
    if device == "cpu":  # to see that it runs
        LIMITS.update(elements=2e6, flops=1e8, least=1e3)
    while time.time() < until:
        try:
            chunk = queue.get(timeout=2)
        except Exception:
            break
        begun = time.time()
        try:
            row = measure(chunk, Path(lock), device)
        except Exception as error:
            print(f"{chunk.name:36s} FAILED {type(error).__name__}: {str(error)[:90]}", flush=True)
            continue
        line = json.dumps(row, separators=(",", ":")) + "\n"
        with open(out, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line)
        us = sum(calls * spent for _, calls, _, spent in row["rows"])
        print(
            f"{chunk.name:36s} {len(row['rows']):4d} rows {us / 1e3:8.1f} ms, GPU held "
            f"{row['held_s']:5.1f} s of {time.time() - begun:5.1f}"
            f"{' failed ' + str(row['failed']) if row['failed'] else ''}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kinds", default="", help="only these, with commas between")
    parser.add_argument("--without", type=Path, nargs="*", default=[], help="what these have")
    parser.add_argument("--join", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    if options.join:
        measured = [json.loads(line) for path in options.join for line in path.open()]
        write_times(options.out, sorted(measured, key=lambda row: row["job"]))
        return 0
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    wanted = [c for c in chunks() if not options.kinds or c.kind in options.kinds.split(",")]
    before = {json.loads(line)["job"] for path in options.without for line in path.open()}
    wanted = [chunk for chunk in wanted if chunk.name not in before]
    for chunk in wanted:
        queue.put(chunk)
    time.sleep(0.5)  # until the queue's thread has written them
    start = time.time()
    until = start + options.seconds - 12
    lock = f"{options.out}.lock"
    arguments = (queue, str(options.out), lock, until, options.device)
    workers = [context.Process(target=_work, args=arguments) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    while time.time() < start + options.seconds and any(w.exitcode != 0 for w in workers):
        for number, worker in enumerate(workers):
            if worker.exitcode in (None, 0) or time.time() > until:
                continue
            print("a chunk had the GPU for too long", flush=True)
            workers[number] = context.Process(target=_work, args=arguments)
            workers[number].start()
        time.sleep(0.2)
    for worker in workers:
        if worker.is_alive():
            worker.kill()
    Path(lock).unlink(missing_ok=True)
    done = sum(1 for _ in options.out.open()) if options.out.exists() else 0
    print(f"{done} of {len(wanted)} chunks in {time.time() - start:.0f} s", flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
