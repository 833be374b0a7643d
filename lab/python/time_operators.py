"""Times every operator of real training steps on the GPU.

    time_operators.py OUT.step.json.xz [--seconds N] [--only WORD] [--without WORD]

The jobs are those of timing_jobs.py, one after the other. A row is one operator with one set of
arguments: what it got and made (as a step file tells it), how often a step calls it, how many
kernels that launches and how many microseconds the GPU spends in them. `lab/fit_step_time` fits
the model of src/job/time to these rows.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from timing_jobs import Job, jobs
from torch.utils._python_dispatch import TorchDispatchMode


class Told(TorchDispatchMode):
    """Numbers each operator that runs, and marks what the GPU does for it with that number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        number = len(self.calls)
        before = [_value(arg) for arg in args]
        named = {key: _value(value) for key, value in kwargs.items()}
        given = {
            leaf.untyped_storage().data_ptr() for leaf in _tensors((args, tuple(kwargs.values())))
        }
        self.calls.append("")
        with torch.profiler.record_function(f"#{number}"):
            result = func(*args, **kwargs)
        made = list(_tensors(result))
        fresh = [
            i
            for i, t in enumerate(made)
            if t.is_cuda and t.untyped_storage().data_ptr() not in given
        ]
        row = [str(func), before, named, [_value(t) for t in made], fresh]
        self.calls[number] = json.dumps(row)
        return result


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from _tensors(element)


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {
            "t": [int(value.is_cuda), str(value.dtype)[6:], list(value.shape), list(value.stride())]
        }
    if isinstance(value, (list, tuple)):
        return [_value(element) for element in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"text": str(value)}
    text = str(value)
    return {"text": text[6:] if isinstance(value, torch.dtype) else text}


def _kernels(event: Any) -> tuple[int, float]:
    count, spent = len(event.kernels), sum(kernel.duration for kernel in event.kernels)
    for child in event.cpu_children:
        more, longer = _kernels(child)
        count, spent = count + more, spent + longer
    return count, spent


def _busy(events: Any) -> float:
    spans = sorted(
        (e.time_range.start, e.time_range.end)
        for e in events
        if e.device_type == torch.autograd.DeviceType.CUDA and not e.is_user_annotation
    )
    busy = end = 0.0
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy


def measure(job: Job) -> dict[str, Any]:
    torch.manual_seed(0)
    step = job.make()
    for _ in range(job.warm_up):
        step()
    torch.cuda.synchronize()
    walls = []
    for _ in range(job.timed):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - start) * 1e3)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    # Busy without marks: the marks make the host slow, but not the kernels.
    with torch.profiler.profile(activities=activities) as plain:
        step()
        torch.cuda.synchronize()
    told = Told()
    with torch.profiler.profile(activities=activities) as profile, told:
        for _ in range(job.profiled):
            step()
        torch.cuda.synchronize()
    rows: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0, 0.0])
    for event in profile.events():
        if event.name.startswith("#") and event.device_type == torch.autograd.DeviceType.CPU:
            kernels, spent = _kernels(event)
            row = rows[told.calls[int(event.name[1:])]]
            row[0] += 1
            row[1] += kernels
            row[2] += spent
    events = plain.events()
    return {
        "job": job.name,
        "settings": job.settings,
        "wall_ms": round(statistics.median(walls), 3),
        "busy_ms": round(_busy(events) / 1e3, 3),
        "kernels": sum(
            e.device_type == torch.autograd.DeviceType.CUDA and not e.is_user_annotation
            for e in events
        ),
        "rows": [
            [json.loads(key), calls / job.profiled, kernels / calls, round(spent / calls, 3)]
            for key, (calls, kernels, spent) in rows.items()
            if kernels
        ],
    }


class _StepFile:
    """Rows as the calls of a step file, one variant a job: the rules' own reader reads them."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.layouts: dict[str, int] = {}
        self.storage = 0

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.value(element) for element in value]
        if isinstance(value, dict) and "t" in value:
            on_device, *layout = value["t"]
            self.storage += 1
            index = self.layouts.setdefault(json.dumps(layout), len(self.layouts))
            return {"t": [self.storage if on_device else 0, index, 0]}
        if isinstance(value, dict):
            return {"text": self.string(value["text"])}
        return value

    def call(self, row: list[Any]) -> list[Any]:
        op, args, kwargs, results, fresh = _as_captured(*row)
        told = [self.value(arg) for arg in args]
        named = {key: self.value(value) for key, value in kwargs.items()}
        made = [self.value(result) for result in results]
        new = [[made[i]["t"][0], _bytes(results[i]["t"]), i] for i in fresh]
        return ["call", self.string(op), -1, -1, 0, told, named, made, new]


def _bytes(tensor: list[Any]) -> int:
    _, dtype, sizes, _ = tensor
    return math.prod(sizes) * getattr(torch, dtype).itemsize


def _as_captured(op: str, args: Any, kwargs: Any, results: Any, fresh: Any) -> tuple[Any, ...]:
    """Attention under the name and with the arguments that plimsoll.capture gives it."""
    if not op.startswith("aten._scaled_dot_product_"):
        return op, args, kwargs, results, fresh
    flash = "flash" in op
    # What has its default value at the end is left out.
    given = [*args, *[None] * 16]
    if "backward" not in op:
        dropout, causal = given[3:5] if flash else given[5:7]
        told = [*args[:3], None if flash else given[3], dropout or 0.0, bool(causal)]
        return "plimsoll.attention", told, {}, results[:2], [i for i in fresh if i < 2]
    if "efficient" in op:
        mask, out, lse, dropout, causal = *given[4:7], given[9], given[11]
    elif flash:
        mask, out, lse, dropout, causal = None, *given[4:6], *given[10:12]
    else:
        mask, out, lse, dropout, causal = given[8], *given[4:6], *given[13:15]
    wanted = [True, True, True, False]
    told = [*args[:4], mask, out, lse, dropout or 0.0, bool(causal), wanted]
    return "plimsoll.attention_backward", told, {}, results[:3], [i for i in fresh if i < 3]


def write_times(path: Path, measured: list[dict[str, Any]]) -> None:
    file = _StepFile()
    variants, times = [], []
    for job in measured:
        file.storage = 0
        events = [["step"], *(file.call(row) for row, *_ in job["rows"])]
        variants.append({"precision": job["job"], "events": events})
        times.append(
            {
                **{key: job[key] for key in ("job", "settings", "wall_ms", "busy_ms", "kernels")},
                # Calls a step, kernels a call, microseconds a call; in the order of the events.
                "calls": [
                    [round(calls, 2), round(kernels, 2), spent]
                    for _, calls, kernels, spent in job["rows"]
                ],
            }
        )
    document = {
        "schema": "plimsoll.step/1",
        "torch": torch.__version__.split("+")[0],
        "gpu": "H200",
        "model": "timed operators",
        "batches": [1, 2],
        "strings": list(file.strings),
        "layouts": [json.loads(layout) for layout in file.layouts],
        "variants": variants,
        "notes": [],
        "times": times,
    }
    with lzma.open(path, "wt", preset=9) as out:
        json.dump(document, out, separators=(",", ":"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--without", default="!", help="but none whose name contains this")
    options = parser.parse_args()
    start = time.time()
    done: list[dict[str, Any]] = []
    for job in jobs():
        if options.only not in job.name or options.without in job.name:
            continue
        if time.time() - start > options.seconds:
            print("no time left at", job.name)
            break
        try:
            row = measure(job)
        except Exception as error:
            print(f"{job.name:40s} FAILED {type(error).__name__}: {str(error)[:100]}", flush=True)
            continue
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.cuda.empty_cache()
        done.append(row)
        write_times(options.out, done)
        summed = sum(calls * spent for _, calls, _, spent in row["rows"]) / 1e3
        print(
            f"{job.name:40s} wall {row['wall_ms']:8.2f} busy {row['busy_ms']:8.2f} "
            f"rows {summed:8.2f} ms "
            f"{row['kernels']:5d} kernels {len(row['rows']):4d} rows {time.time() - start:5.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
