#!/usr/bin/env python3
"""Predicted against measured step times: time_accuracy.py PROGRAM CAPTURES TIMES.jsonl [GPU_TIMES.jsonl.xz].

CAPTURES is a folder made by lab/python/capture_truth.py. TIMES has the wall time of each job; GPU_TIMES,
for some of them, how long the GPU was busy and how many kernels there were.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import subprocess
import sys
from pathlib import Path


def predicted(program: str, captures: Path) -> dict[str, dict]:
    index: dict[str, dict] = {}
    for part in captures.glob("index*.json"):
        index.update(json.loads(part.read_text()))
    found = {}
    for job, where in sorted(index.items()):
        command = [program, "predict", captures / where["file"], "--batch", str(where["batch"]), "--gpu", "H200", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            print(job, done.stderr.strip(), file=sys.stderr)
            continue
        found[job] = json.loads(done.stdout)
    return found


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(title: str, errors: dict[str, float]) -> None:
    sizes = [abs(e) for e in errors.values()]
    worst = max(errors, key=lambda job: abs(errors[job]))
    print(
        f"{title}: {len(errors)} jobs, median {100 * statistics.median(sizes):.1f} %, p90 {100 * quantile(sizes, 0.9):.1f} %, "
        f"worst {100 * errors[worst]:+.1f} % ({worst}), bias {100 * statistics.mean(errors.values()):+.1f} %"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("captures", type=Path)
    parser.add_argument("times", type=Path)
    parser.add_argument("gpu_times", type=Path, nargs="?")
    options = parser.parse_args()
    found = predicted(options.program, options.captures)
    walls = {}
    for line in options.times.read_text().splitlines():
        row = json.loads(line)
        walls[row["id"] if "id" in row else row["spec"]["id"]] = row
    gpu = {}
    if options.gpu_times:
        for line in lzma.open(options.gpu_times, "rt"):
            row = json.loads(line)
            gpu[row["id"]] = row
    busy_errors, wall_errors, bound_errors = {}, {}, {}
    for job, prediction in found.items():
        ms = prediction["step_us"] / 1e3
        wall = walls[job].get("median_ms") or walls[job].get("step_ms_median") or statistics.median(walls[job]["step_ms"][3:])
        text = f"{job:44s} predicted {ms:8.2f} wall {wall:8.2f} {100 * (ms / wall - 1):+6.1f} %"
        wall_errors[job] = ms / wall - 1
        if job in gpu:
            busy = gpu[job]["gpu_busy_ms"]
            error = prediction["gpu_busy_us"] / 1e3 / busy - 1
            busy_errors[job] = error
            text += f"  busy {busy:8.2f} {100 * error:+6.1f} %  {gpu[job]['kernels']} kernels"
            if busy / gpu[job]["wall_ms"] > 0.85:
                bound_errors[job] = error
        print(text)
    summary("wall time, all", wall_errors)
    if busy_errors:
        summary("GPU busy, all", busy_errors)
        summary("GPU busy over 85 %", bound_errors)
    return 0


if __name__ == "__main__":
    sys.exit(main())
