"""Measures what convolutions take, for the calibration that is part of the program.

    measure_convolutions.py shapes OUT.json              the shapes; no GPU, torchvision
    measure_convolutions.py measure SHAPES.json OUT.jsonl [SHARD SHARDS]     on the GPU

Then tools/make_calibration GPU TORCH CUDNN OUT.jsonl... | zstd -19 > data/<gpu>.calibration.zst.
data/README.md says how the H200's was made.
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
MORE_SIZES = {
    name: (160, 192, 256, 288)
    for name in "resnet34 resnet101 mobilenet_v2 mobilenet_v3_large efficientnet_b0 convnext_tiny "
    "densenet121 vgg16 regnet_y_400mf resnext50_32x4d".split()
} | dict.fromkeys(("resnet18", "resnet50"), (32, 64, 96, 128, 160, 192, 256, 288, 320, 384, 512))
# Attention over patches: one convolution each, and slow to build.
PATCHES = (
    "vit_h",
    "vit_l_16",
    "swin_s",
    "swin_b",
    "swin_v2_s",
    "swin_v2_b",
    "maxvit",
    "regnet_y_128gf",
)

Shape = list[Any]


def shapes() -> list[Shape]:
    """[c, h, w], weight, stride, padding, dilation, transposed, output padding, groups of each."""
    found = [*_of_torchvision(), *_of_unets(), *_of_other_kinds()]
    return list({json.dumps(shape): shape for shape in found}.values())


def _of_torchvision() -> Iterator[Shape]:
    import torchvision.models as models
    from torchvision.models import segmentation

    for name in models.list_models(module=models):
        if name.startswith(PATCHES):
            continue
        network = models.get_model(name, weights=None).to("meta")
        usual = 299 if "inception" in name else 224
        for size in (usual, *MORE_SIZES.get(name, ())):
            yield from _convolutions(network, size, name)
    for name in models.list_models(module=segmentation):
        network = models.get_model(name, weights=None, weights_backbone=None).to("meta")
        for size in (256, 320, 384, 416, 448, 512):
            yield from _convolutions(network, size, name)


def _convolutions(network: torch.nn.Module, size: int, name: str) -> list[Shape]:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Shape] = []

    class Collect(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.convolution.default and args[0].dim() == 4:
                seen.append([list(args[0].shape[1:]), list(args[1].shape), *args[3:]])
            return func(*args, **(kwargs or {}))

    try:
        with Collect():
            network(torch.randn(2, 3, size, size, device="meta"))
    except Exception as error:  # some take one size only
        print(f"{name} at {size}: {error}", file=sys.stderr)
    return seen


def _shape(
    c: int,
    size: int,
    k: int,
    kernel: int,
    stride: int = 1,
    pad: int | None = None,
    up: bool = False,
) -> Shape:
    pad = kernel // 2 if pad is None else pad
    weight = [c, k, kernel, kernel] if up else [k, c, kernel, kernel]
    return [[c, size, size], weight, [stride] * 2, [pad] * 2, [1, 1], up, [0, 0], 1]


def _of_unets() -> Iterator[Shape]:
    """Four times halved, two 3x3 a level, 2x2 transposed on the way up."""
    for width in (16, 32, 48, 64):
        for size in (128, 192, 224, 256, 320, 384, 512):
            yield _shape(3, size, width, 3)
            yield _shape(width, size, 2, 1, pad=0)
            for level in range(5):
                c, side = width << level, size >> level
                yield _shape(c, side, c, 3)
                yield _shape(c, side // 2, 2 * c, 3)
                yield _shape(2 * c, side, c, 3)
                yield _shape(2 * c, side // 2, c, 2, 2, 0, up=True)


def _of_other_kinds() -> Iterator[Shape]:
    """As diffusion models, GANs, networks for small images, and detectors have them."""
    for size, channels in ((64, (320, 640, 960)), (32, (320, 640, 960, 1280, 1920))):
        for c in channels:
            for k in (320, 640, 1280):
                yield _shape(c, size, k, 3)
                yield _shape(c, size, k, 1)
    for size in (4, 8, 16, 32, 64):
        for c in (64, 128, 256, 512, 1024):
            for k in (3, c // 2, c):
                yield _shape(c, size, k, 4, 2, 1, up=True)
                yield _shape(k, 2 * size, c, 4, 2, 1)
    for size, channels in ((32, (16, 32, 64, 96, 128, 160)), (16, (32, 64, 128, 256, 320))):
        for c in channels:
            for k in (c, 2 * c):
                for stride in (1, 2):
                    yield _shape(c, size, k, 3, stride)
    for size in (640, 320, 160, 80, 40, 20):
        for c in (16, 32, 64, 128, 256, 512):
            if c * size * size <= 64 * 320 * 320:
                for k in (c // 2, c, 2 * c):
                    yield _shape(c, size, k, 3)
                    yield _shape(c, size, k, 3, 2)
                    yield _shape(c, size, k, 1)


def measure(all_shapes: list[Shape], shard: int, shards: int) -> Iterator[list[Any]]:
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
