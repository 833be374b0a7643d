"""The jobs of `tools/zoo.py` as plimsoll.capture takes them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import plimsoll

_AUTOCAST = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
_kept: list[torch.library.Library] = []


def load_tool(folder: str, name: str) -> ModuleType:
    """zoo.py or ops.py, as a module."""
    sys.path.insert(0, folder)
    return importlib.import_module(name)


def torchvision_without_extension() -> None:
    """torchvision's own operators are built for one torch; its models need none of them, but it
    does not import without their names."""
    found = importlib.util.find_spec("torchvision")
    if _kept or found is None or found.origin is None:
        return
    for extension in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(extension))
            return
        except OSError:
            continue
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


def capture_spec(
    zoo: ModuleType, spec: dict[str, Any], gpu: str, precisions: Sequence[str] = ()
) -> plimsoll.Capture:
    """One row of truth.jsonl, at batches 2 and 3, as zoo.py's run() does it."""
    made: dict[str, Any] = {}

    def model() -> torch.nn.Module:
        module, made["batch"], made["loss"] = zoo.build(spec)
        return module.bfloat16() if spec.get("dtype") == "bf16_pure" else module

    def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = made["batch"](size)
        if spec.get("dtype") == "bf16_pure" and x.is_floating_point():
            x = x.bfloat16()
        return x, y

    accumulate = spec.get("accum", 1)

    def loss(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = made["loss"](module, x, y)
        # zoo.py divides by 1 as well; capture divides where there is something to divide by.
        return value / 1 if accumulate == 1 else value

    return plimsoll.capture(
        model,
        lambda parameters: zoo.opt_of(spec, parameters),
        make_batch,
        loss,
        accumulate=accumulate,
        autocast=_AUTOCAST.get(spec.get("dtype", "")),
        scaler=True if spec.get("dtype") == "amp_fp16" else None,
        gpu=gpu,
        precisions=precisions,
        channels_last=bool(spec.get("channels_last")),
    )
