"""Calibrates ResNet-18 on the GPU that is here: calibrate_h200.py [OUT] [--builtin FILE].

Captures it at batches 2 and 3, measures at 8, 16 and 50, writes OUT (h200.calibration) and prints a
table. Where zstd is installed, the figures are held against the calibration that ships with the
program: at a batch that both measured they have to be the same, on the same GPU and cuDNN.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_REPOSITORY / "python"))

from zoo_jobs import torchvision_without_extension

import plimsoll

BATCHES = (8, 16, 50)
DIRECTIONS = ("forward", "backward_data", "backward_weight")


def captured() -> plimsoll.Capture:
    torchvision_without_extension()
    from torchvision.models import resnet18

    return plimsoll.capture(
        resnet18,
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        lambda n: (torch.randn(n, 3, 224, 224), torch.randint(0, 1000, (n,))),
        lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y),
        batches=(2, 3),
    )


def print_table(made: plimsoll.Calibration) -> None:
    print(f"{'convolution':44s} {'batch':>5s}" + "".join(f" {d:>24s}" for d in DIRECTIONS))
    for shape, series in made.memory.items():
        for n, sizes in series.items():
            cells = zip(sizes, made.times[shape][n])
            text = "".join(f" {size:>12,d} B {time:>7.1f} us" for size, time in cells)
            print(f"{shape.key:44s} {n:5d}{text}")
    for key, taken in made.calls.items():
        print(
            f"{key:74s}" + "".join(f" {size:>12,d} B {time or 0:>7.1f} us" for size, time in taken)
        )


def shipped(file: Path) -> Iterator[tuple[str, list[int], list[list[tuple[int, int]]]]]:
    """Of each convolution its key, the batches that were measured, and the points by direction."""
    import json

    done = subprocess.run(["zstd", "-dc", file], capture_output=True, text=True, check=True)
    header, *lines = done.stdout.splitlines()
    lists = json.loads(header)["batches"]
    for line in lines:
        key, index, *cells = line.split("\t")
        points = [[_point(pair) for pair in cell.split(" ")] for cell in cells]
        yield key, lists[int(index)], points


def _point(pair: str) -> tuple[int, int]:
    batch, size = pair.split(":")
    return int(batch), int(size)


def at(points: list[tuple[int, int]], n: int) -> int:
    for a, b in zip(points, points[1:]):
        if a[0] <= n <= b[0]:
            return a[1] + (n - a[0]) * (b[1] - a[1]) // (b[0] - a[0])
    return points[0][1]


def compare(made: plimsoll.Calibration, file: Path) -> None:
    known: dict[str, Any] = {key: rest for key, *rest in shipped(file)}
    same = other = missing = 0
    for shape, series in made.memory.items():
        for n, sizes in series.items():
            if shape.key not in known or n not in known[shape.key][0]:
                missing += 3
                continue
            for name, size, points in zip(DIRECTIONS, sizes, known[shape.key][1]):
                if size == at(points, n):
                    same += 1
                else:
                    other += 1
                    print(f"{shape.key} {name} at {n}: {size:,d}, and {at(points, n):,d} shipped")
    print(f"against {file.name}: {same} the same, {other} not, {missing} not in it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="h200.calibration")
    parser.add_argument(
        "--builtin", type=Path, default=_REPOSITORY / "data" / "h200.calibration.zst"
    )
    options = parser.parse_args()
    step = captured()
    start = time.perf_counter()
    try:
        made = plimsoll.calibrate(step, batches=BATCHES, path=options.out)
    except plimsoll.CaptureError as error:
        print(f"calibrate_h200: {error}", file=sys.stderr)
        return 1
    took = time.perf_counter() - start
    print_table(made)
    for note in made.notes:
        print(f"note: {note}")
    size = Path(options.out).stat().st_size
    print(f"{made}, torch {made.torch}, cuDNN {made.cudnn}")
    print(f"{options.out}: {size:,d} bytes, measured in {took:.1f} s")
    if options.builtin.exists() and shutil.which("zstd"):
        compare(made, options.builtin)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
