"""What convolutions and whole training steps cost when cuDNN is refused its workspace.

    measure_refusals.py calls OUT.jsonl      single calls: with a workspace, and refused it
    measure_refusals.py steps OUT.jsonl      training steps under a memory limit, by batch

Needs a GPU. A limit is set by `set_per_process_memory_fraction`; a workspace is refused by leaving
no more room than the outputs take. `tests/data/steps/refused.json` is a sample of the result.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any, Callable

import torch
import torchvision

_MODELS = ("vgg16", "resnet101", "resnet18", "densenet121", "unet")
_BATCH = {"vgg16": 64, "resnet101": 64, "resnet18": 128, "densenet121": 96, "unet": 16}


def total() -> int:
    return torch.cuda.mem_get_info()[1]


def limit(size: int | None) -> None:
    share = 1.0 if size is None else min(1.0, size / total())
    torch.cuda.set_per_process_memory_fraction(share)


def refusals() -> int:
    return int(torch.cuda.memory_stats()["num_ooms"])


class _Double(torch.nn.Sequential):
    def __init__(self, i: int, o: int) -> None:
        block: list[torch.nn.Module] = []
        for a in (i, o):
            block += [
                torch.nn.Conv2d(a, o, 3, padding=1),
                torch.nn.BatchNorm2d(o),
                torch.nn.ReLU(inplace=True),
            ]
        super().__init__(*block)


class UNet(torch.nn.Module):
    def __init__(self, w: int = 32) -> None:
        super().__init__()
        ch = [w << i for i in range(5)]
        self.down = torch.nn.ModuleList(
            [_Double(3, ch[0])] + [_Double(ch[i], ch[i + 1]) for i in range(4)]
        )
        self.up = torch.nn.ModuleList(
            [torch.nn.ConvTranspose2d(ch[i + 1], ch[i], 2, 2) for i in reversed(range(4))]
        )
        self.conv = torch.nn.ModuleList([_Double(ch[i] * 2, ch[i]) for i in reversed(range(4))])
        self.head = torch.nn.Conv2d(ch[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for i, d in enumerate(self.down):
            x = d(x if i == 0 else torch.nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for u, c, s in zip(self.up, self.conv, reversed(skips[:-1])):
            x = c(torch.cat([s, u(x)], 1))
        return self.head(x).mean((2, 3))


def build(name: str) -> torch.nn.Module:
    return UNet() if name == "unet" else torchvision.models.get_model(name, weights=None)


def side(name: str) -> int:
    return 256 if name == "unet" else 224


def timed(call: Callable[[], Any], times: int) -> list[float]:
    """Milliseconds of each, the host's part included."""
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(1000 * (time.perf_counter() - begin))
    return found


def shapes(name: str, batch: int) -> list[tuple[tuple[int, ...], torch.nn.Conv2d]]:
    found: dict[Any, tuple[tuple[int, ...], torch.nn.Conv2d]] = {}
    model = build(name)

    def note(m: torch.nn.Conv2d, args: Any, _: Any) -> None:
        key = (args[0].shape[1:], m.weight.shape, m.stride)
        found.setdefault(key, ((batch, *args[0].shape[1:]), m))

    for m in model.modules():
        if isinstance(m, torch.nn.Conv2d):
            m.register_forward_hook(note)
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, 3, side(name), side(name)))
    return list(found.values())


def calls(out: Any) -> None:
    for name in _MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            for shape, m in shapes(name, _BATCH[name])[:: 4 if name == "densenet121" else 1]:
                for row in one_shape(shape, m, dtype):
                    row["model"] = name
                    out.write(json.dumps(row) + "\n")
                out.flush()


def one_shape(
    shape: tuple[int, ...], m: torch.nn.Conv2d, dtype: torch.dtype
) -> list[dict[str, Any]]:
    torch.cuda.empty_cache()  # or larger blocks that are cached have room to spare
    x = torch.randn(shape, device="cuda", dtype=dtype)
    w = torch.randn(m.weight.shape, device="cuda", dtype=dtype)
    common = [m.stride, m.padding, m.dilation, False, [0, 0], m.groups]
    y = torch.ops.aten.convolution(x, w, None, *common)
    ways: dict[str, Callable[[], Any]] = {
        "forward": lambda: torch.ops.aten.convolution(x, w, None, *common)
    }
    for key, mask in (("data", [True, False, False]), ("weight", [False, True, False])):
        ways[key] = lambda mask=mask: torch.ops.aten.convolution_backward(
            y, x, w, None, *common, mask
        )
    rows = []
    for direction, call in ways.items():
        result = {"forward": y, "data": x, "weight": w}[direction]
        timed(call, 2)
        free = statistics.median(timed(call, 5))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        used = torch.cuda.max_memory_allocated() - before
        workspace = used - result.numel() * result.element_size()
        torch.cuda.empty_cache()
        spare = torch.empty_like(result)  # room for the result alone
        del spare
        limit(torch.cuda.memory_reserved())
        count = refusals()
        try:
            refused = timed(call, 6)
        except torch.OutOfMemoryError:
            refused = []
        count = refusals() - count
        limit(None)
        rows.append({"dtype": str(dtype)[6:], "input": list(shape), "weight": list(w.shape),
                     "stride": m.stride[0], "groups": m.groups, "direction": direction,
                     "workspace": workspace, "ms": round(free, 4),
                     "refused_ms": [round(t, 4) for t in refused], "refusals": count})  # fmt: skip
    return rows


def steps(out: Any) -> None:
    for name in _MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            torch.cuda.empty_cache()
            under_limit(name, dtype, out)


def under_limit(name: str, dtype: torch.dtype, out: Any) -> None:
    free = run(name, dtype, _BATCH[name], None)
    size = free["reserved"]
    out.write(json.dumps(free) + "\n")
    out.flush()
    for share in (0.7, 0.85, 0.95, 1.0, 1.03, 1.06, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5):
        row = run(name, dtype, max(1, round(share * _BATCH[name])), size)
        out.write(json.dumps(row) + "\n")
        out.flush()
        if not row["fits"]:
            return


def run(name: str, dtype: torch.dtype, batch: int, size: int | None) -> dict[str, Any]:
    torch.cuda.empty_cache()
    limit(size)
    torch.cuda.reset_peak_memory_stats()
    row: dict[str, Any] = {"model": name, "dtype": str(dtype)[6:], "batch": batch, "limit": size,
                           "fits": True}  # fmt: skip
    model = optimizer = None
    count = refusals()
    try:
        model = build(name).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step() -> None:
            x = torch.randn(batch, 3, side(name), side(name), device="cuda")
            target = torch.zeros(batch, dtype=torch.long, device="cuda")
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                loss = torch.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        each = []
        row["refusals"] = []
        for _ in range(8):
            before = refusals()
            each += timed(step, 1)
            row["refusals"].append(refusals() - before)
        row["ms"] = round(statistics.median(each[3:]), 3)
        row["first_ms"] = round(each[0], 1)
    except torch.OutOfMemoryError:
        row["fits"] = False
    row["ooms"] = refusals() - count
    row["allocated"] = torch.cuda.max_memory_allocated()
    row["reserved"] = torch.cuda.max_memory_reserved()
    row["retries"] = int(torch.cuda.memory_stats()["num_alloc_retries"])
    model = optimizer = None
    limit(None)
    return row


if __name__ == "__main__":
    with open(sys.argv[2], "w") as file:
        {"calls": calls, "steps": steps}[sys.argv[1]](file)
