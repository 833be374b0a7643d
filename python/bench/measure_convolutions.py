"""Measures what convolutions take, for the calibration that is part of the program.

    measure_convolutions.py shapes OUT.json              the shapes; no GPU, torchvision
    measure_convolutions.py measure SHAPES.json OUT.jsonl [SHARD SHARDS]     on the GPU

Then tools/make_calibration GPU TORCH CUDNN OUT.jsonl... | zstd -19 > data/<gpu>.calibration.zst.
The H200's was made so on 2026-11-15 with torch 2.11, fifteen shards at a time, in 430 s: the
convolutions of torchvision's models at 224 pixels and others, of U-Nets, and of the kinds that
diffusion models, GANs, CIFAR networks and detectors have.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
FEWER = (2, 4, 8, 16, 32, 64, 128)
# Tensors up to 2^28 elements: fifteen processes share the card.
MOST_ELEMENTS = 1 << 28
# dtype, channels last, batches.
KINDS = (
    ("float32", False, BATCHES),
    ("bfloat16", False, BATCHES),
    ("float16", False, FEWER),
    ("bfloat16", True, FEWER),
    ("float32", True, FEWER),
)
MORE_SIZES = {"resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"}


def shapes() -> list[list[Any]]:
    """[[c, h, w], weight, stride, padding, dilation, transposed, output padding, groups]."""
    import torchvision.models as models
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: dict[str, list[Any]] = {}

    class Collect(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.convolution.default and args[0].dim() == 4:
                shape = [list(args[0].shape[1:]), list(args[1].shape), *args[3:]]
                seen.setdefault(json.dumps(shape), shape)
            return func(*args, **(kwargs or {}))

    for name in models.list_models(module=models):
        sizes = [299] if "inception" in name else [224]
        sizes += [160, 192, 256, 288, 320, 384] if name in MORE_SIZES else []
        network = models.get_model(name, weights=None).to("meta")
        for size in sizes:
            try:
                with Collect():
                    network(torch.randn(2, 3, size, size, device="meta"))
            except Exception as error:  # some take one size only
                print(f"{name} at {size}: {error}", file=sys.stderr)
    return list(seen.values())


def measure(all_shapes: list[list[Any]], shard: int, shards: int) -> Iterator[list[Any]]:
    tasks = [(shape, kind) for shape in all_shapes for kind in KINDS]
    random.Random(5).shuffle(tasks)  # every shard gets its share of the slow ones
    for (image, weight, *how), (dtype, channels_last, batches) in tasks[shard::shards]:
        stride, padding, dilation, transposed, _, groups = how
        rows = list(_series(image, weight, how, dtype, channels_last, batches))
        out = weight[1] * groups if transposed else weight[0]
        sizes = [*image, out, *weight[2:], *stride, *padding, *dilation, groups]
        yield [dtype, channels_last, sizes, transposed, rows]


def _series(
    image: list[int], weight: list[int], how: list[Any], dtype: str, last: bool, batches: Any
) -> Iterator[list[int]]:
    layout = torch.channels_last if last else torch.contiguous_format
    make = {"dtype": getattr(torch, dtype), "device": "cuda", "memory_format": layout}
    w = torch.empty(weight, **make)
    for batch in batches:
        try:
            x = torch.empty([batch, *image], **make)
            if x.numel() > MOST_ELEMENTS:
                return
            forward, y = _temporary(torch.ops.aten.convolution, x, w, None, *how)
            back = torch.ops.aten.convolution_backward
            gradient = torch.empty_like(y)
            data, _ = _temporary(back, gradient, x, w, None, *how, [True, False, False])
            weights, _ = _temporary(back, gradient, x, w, None, *how, [False, True, False])
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            return
        yield [batch, forward, data, weights]


def _temporary(call: Any, *args: Any) -> tuple[int, Any]:
    """What was asked for at the worst moment of the call, less what is left of it."""
    torch.cuda.reset_peak_memory_stats()
    result = call(*args)
    stats = torch.cuda.memory_stats()
    return stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"], result


def main() -> int:
    what, *rest = sys.argv[1:] or ["help"]
    if what == "shapes" and len(rest) == 1:
        Path(rest[0]).write_text(json.dumps(shapes()))
    elif what == "measure" and len(rest) in (2, 4):
        shard, shards = (int(n) for n in rest[2:]) if rest[2:] else (0, 1)
        with open(rest[1], "w") as lines:
            for row in measure(json.loads(Path(rest[0]).read_text()), shard, shards):
                lines.write(json.dumps(row) + "\n")
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
