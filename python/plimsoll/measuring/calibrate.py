"""plimsoll.calibrate: what the operators of a captured step really take on the GPU that is here.

Torch is imported where it is needed only. What is measured is in calibration_work.py, context.py
and host.py, the file that it goes to in calibration_file.py.

    python -m plimsoll.measuring.calibrate --context --host card.calibration

measures in a minute what the CUDA context takes on the card, and how long the machine's Python
takes to issue a step's calls, and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Union

from ..asking.shapes import Convolution, Layout
from ..base.errors import CaptureError
from ..base.output import check_output
from . import context as contexts
from . import host as hosts
from .calibration_file import Calibration
from .calibration_work import (
    Call,
    Work,
    attention_args,
    batch_sizes,
    collect,
    read_step,
)
from .clusters import clusters

if TYPE_CHECKING:
    from ..capturing.api import Capture

# What torch calls a card, where `plimsoll gpus` has another name. Vendors' words are cut off first.
_CATALOGUE = {
    "A100-PCIE-40GB": "A100 40GB PCIe",
    "A100-SXM4-40GB": "A100 40GB SXM",
    "A100-SXM4-80GB": "A100 80GB SXM",
    "GH200 480GB": "GH200",
    "H100 80GB HBM3": "H100 SXM",
    "P100-PCIE-16GB": "P100 16GB",
    "RTX 4000 Ada Generation": "RTX 4000 Ada",
    "RTX 4060 Laptop GPU": "RTX 4060 Laptop",
    "RTX 4500 Ada Generation": "RTX 4500 Ada",
    "RTX 5000 Ada Generation": "RTX 5000 Ada",
    "RTX 6000 Ada Generation": "RTX 6000 Ada",
    "RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell",
    "RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
    "V100-PCIE-16GB": "V100 16GB PCIe",
    "V100-PCIE-32GB": "V100 32GB PCIe",
    "V100-SXM2-16GB": "V100 16GB SXM",
    "V100-SXM2-32GB": "V100 32GB SXM",
}


def calibrate(
    step_or_capture: Capture | str | os.PathLike[str] | None = None,
    *,
    batches: Iterable[int] | None = None,
    path: str | os.PathLike[str] | None = None,
    time: bool = True,
    context: bool = False,
    host: bool = False,
) -> Calibration:
    """Runs each distinct convolution, attention and matrix product of a captured step on the GPU
    of this machine, at these batch sizes, and notes the temporary memory and the time that it
    takes; with `context` also what a process takes besides PyTorch's memory, with `host` how long
    Python takes to issue calls, for which no step is needed. `docs/calibrate.md` tells what that is
    good for."""
    if step_or_capture is None:
        return _calibrate_machine(context, host, path)
    document = read_step(step_or_capture)
    sizes = batch_sizes(document, batches)
    if path is not None:
        read = [] if hasattr(step_or_capture, "document") else [os.fspath(step_or_capture)]
        check_output(path, inputs=read)
    work = collect(document, sizes)
    if not work.convolutions and not work.calls:
        raise CaptureError("this step has no convolution, attention or matrix product to measure")
    torch = _torch_with_gpu()
    made = _empty(torch)
    made.notes += work.notes
    _measure_machine(torch, made, context, host)
    settings = document.get("settings", {})
    try:
        with _as_captured(torch, settings):
            gauge = Gauge(torch, time, bool(settings.get("cudnn_benchmark")))
            made.clusters = clusters(torch)
            measure(work, gauge, made)
    finally:
        torch.cuda.empty_cache()
    if path is not None:
        made.write(path)
    return made


def _calibrate_machine(
    context: bool, host: bool, path: str | os.PathLike[str] | None
) -> Calibration:
    if not context and not host:
        raise CaptureError(
            "there is nothing to measure",
            hint="Give a captured step, or context=True for what the CUDA context takes, or "
            "host=True for how long Python takes",
        )
    if path is not None:
        check_output(path, inputs=[])
    torch = _torch_with_gpu()
    made = _empty(torch)
    _measure_machine(torch, made, context, host)
    if path is not None:
        made.write(path)
    return made


def _measure_machine(torch: Any, made: Calibration, context: bool, host: bool) -> None:
    if context:
        made.context = contexts.measured(torch)._asdict()
    if host:
        with torch.random.fork_rng([torch.cuda.current_device()]):
            made.host = hosts.measured(torch)._asdict()


def _empty(torch: Any) -> Calibration:
    return Calibration(
        gpu_name(torch.cuda.get_device_name()),
        torch.__version__.split("+")[0],
        cudnn_release(torch.backends.cudnn.version()),
    )


# The measurement.

# Bytes, microseconds if wanted, and the result.
Measured = tuple[int, Union[float, None], Any]


class Gauge:
    """Runs a function on the GPU, and tells its temporary memory and time."""

    # Cycles for which the GPU is kept busy, so that launches wait for it and not it for them.
    _HEAD_START = 1_000_000

    def __init__(self, torch: Any, time: bool, searches: bool) -> None:
        self.torch = torch
        self.device = "cuda"
        self.time = time
        self._searches = searches
        torch.empty(1, device=self.device)

    def __call__(self, function: Callable[[], Any]) -> Measured:
        cuda = self.torch.cuda
        if self._searches:
            function()  # the search of cuDNN's benchmark mode takes memory of its own, once
        cuda.reset_peak_memory_stats()
        result = function()
        stats = cuda.memory_stats()
        size = stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]
        times = sorted(self._timed(function) for _ in range(3)) if self.time else None
        return size, times[1] if times else None, result

    def _timed(self, function: Callable[[], Any]) -> float:
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        if hasattr(cuda, "_sleep"):
            cuda._sleep(self._HEAD_START)
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000

    def recover(self) -> None:
        """After a failure. Raises if the GPU can no longer be used."""
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()


def measure(work: Work, gauge: Any, made: Calibration) -> None:
    """Everything in `work`, into `made`."""
    total = sum(len(batches) for _, batches in work.convolutions.values())
    progress = _Progress(total + sum(map(len, work.calls)))
    with gauge.torch.no_grad(), progress:
        for shape, (how, batches) in work.convolutions.items():
            series = ((f"{shape.key} at {n}", _convolution(how, n, gauge, made)) for n in batches)
            _run_series(series, gauge, made, progress)
        for calls in work.calls:
            series = ((call.key, _call(call, gauge, made)) for call in calls)
            _run_series(series, gauge, made, progress)


def _run_series(
    series: Iterable[tuple[str, Callable[[], None]]],
    gauge: Any,
    made: Calibration,
    progress: _Progress,
) -> None:
    """The same thing at growing batches; where one fails, the larger ones are left out."""
    failed = None
    for key, run in series:
        progress.next(key)
        if failed is not None:
            continue
        try:
            run()
        except gauge.torch.cuda.OutOfMemoryError:
            failed = "out of memory"
        except RuntimeError as error:
            failed = (str(error).splitlines() or ["no message"])[0]
        if failed is not None:
            made.notes.append(f"{key}: {failed}; not measured from here on")
            gauge.recover()


def _convolution(how: Convolution, batch: int, gauge: Any, made: Calibration) -> Callable[[], None]:
    def run() -> None:
        torch, shape = gauge.torch, how.shape
        options = {
            "dtype": getattr(torch, shape.dtype),
            "device": gauge.device,
            "memory_format": torch.channels_last
            if shape.channels_last
            else torch.contiguous_format,
        }
        x = torch.empty((batch, *how.input), **options)
        weight = torch.empty(how.weight, **options)
        convolution, backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
        rest = tuple(list(s) if isinstance(s, tuple) else s for s in how.settings)
        *forward, y = gauge(lambda: convolution(x, weight, None, *rest))
        gradient = torch.empty_like(y)
        del y

        def direction(*mask: bool) -> Any:
            return gauge(lambda: backward(gradient, x, weight, None, *rest, list(mask)))[:2]

        taken = [forward, direction(True, False, False), direction(False, True, False)]
        sizes, times = zip(*taken)
        made.memory.setdefault(shape, {})[batch] = sizes
        if gauge.time:
            made.times.setdefault(shape, {})[batch] = times

    return run


def _call(call: Call, gauge: Any, made: Calibration) -> Callable[[], None]:
    def run() -> None:
        if call.key in made.calls:
            return
        attention = call.op == "plimsoll.attention"
        made.calls[call.key] = (_attention if attention else _product)(call, gauge)

    return run


def _tensor(layout: Any, gauge: Any, grad: bool = False) -> Any:
    if not isinstance(layout, Layout):
        return list(layout) if isinstance(layout, tuple) else layout
    made = gauge.torch.empty_strided(
        layout.sizes,
        layout.strides,
        dtype=getattr(gauge.torch, layout.dtype),
        device=gauge.device,
    )
    return made.requires_grad_() if grad and layout.needs_grad else made


def _product(call: Call, gauge: Any) -> list[tuple[int, float | None]]:
    function = getattr(gauge.torch.ops.aten, call.op.split(".")[1]).default
    args = [_tensor(arg, gauge) for arg in call.args]
    return [gauge(lambda: function(*args, **dict(call.kwargs)))[:2]]


def _attention(call: Call, gauge: Any) -> list[tuple[int, float | None]]:
    torch = gauge.torch
    *layouts, dropout, causal = attention_args(call.args)
    tensors = [_tensor(layout, gauge, grad=True) for layout in layouts]
    function = torch.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        return function(*tensors, dropout, causal, **dict(call.kwargs))

    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    if not wanted:
        return [gauge(forward)[:2]]
    with torch.enable_grad():
        *taken, output = gauge(forward)
        gradient = torch.empty_like(output)
        # What the forward saved stays, or it would count as a temporary of the backward.
        again = gauge(lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True))
    return [(taken[0], taken[1]), again[:2]]


class _Progress:
    """One line that is written over, where somebody looks on."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._shown = sys.stderr.isatty()

    def next(self, what: str) -> None:
        self._done += 1
        if self._shown:
            text = f"plimsoll: measuring {self._done} of {self._total}: {what}"
            print(f"\r\x1b[K{text[:99]}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# The machine.


def _torch_with_gpu() -> Any:
    """Torch, if it has a GPU and counts what is asked of it; an error that says what is missing."""
    elsewhere = (
        "A calibration runs on the machine that has the GPU: copy the step file there. "
        "Without one, plimsoll predict goes by its built-in tables and rules"
    )
    try:
        import torch
    except ImportError as error:
        raise CaptureError("torch is not installed here", hint=elsewhere) from error
    if getattr(torch.version, "hip", None):
        raise CaptureError("this torch is built for ROCm, and only CUDA is known", hint=elsewhere)
    if not torch.cuda.is_available():
        build = "this torch is a CPU build" if torch.version.cuda is None else "no CUDA GPU is here"
        raise CaptureError(f"there is nothing to measure on: {build}", hint=elsewhere)
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise CaptureError(
            f"the allocator {backend} does not count what is asked of it",
            hint="Calibrate without backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF",
        )
    return torch


def gpu_name(reported: str) -> str:
    """The name in `plimsoll gpus` of what torch calls a card, as far as it is known."""
    name = re.sub(r"^((NVIDIA|GeForce|Tesla|Quadro) )+", "", reported.strip())
    return _CATALOGUE.get(name, name)


def cudnn_release(version: int | None) -> str:
    """9.19 of 91900, 8.9 of 8902."""
    if version is None:
        return "none"
    major = 10000 if version >= 90000 else 1000
    return f"{version // major}.{version % major // 100}"


@contextlib.contextmanager
def _as_captured(torch: Any, settings: Mapping[str, bool]) -> Iterator[None]:
    """The settings under which the job will run; the user's random numbers stay as they were."""
    backends = torch.backends
    wanted = (
        (backends.cudnn, "deterministic", settings.get("deterministic")),
        (backends.cudnn, "benchmark", settings.get("cudnn_benchmark")),
        (backends.cudnn, "allow_tf32", settings.get("cudnn_tf32")),
        (backends.cuda.matmul, "allow_tf32", settings.get("matmul_tf32")),
    )
    changed = []
    devices = [torch.cuda.current_device()]
    with torch.random.fork_rng(devices), torch.autocast("cuda", enabled=False):
        try:
            for where, name, value in wanted:
                before = getattr(where, name)
                if value is not None and value != before:
                    changed.append((where, name, before))
                    setattr(where, name, value)
            yield
        finally:
            for where, name, before in reversed(changed):
                setattr(where, name, before)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m plimsoll.measuring.calibrate",
        description="Measures what the GPU of this machine takes, for plimsoll predict "
        "--calibration.",
        allow_abbrev=False,
    )
    parser.add_argument("--context", action="store_true", help="what the CUDA context takes")
    parser.add_argument("--host", action="store_true", help="how long Python takes, in a minute")
    parser.add_argument("--step", metavar="FILE", help="and the operators of this captured step")
    parser.add_argument("file", help="where to write the calibration; packed if it ends in .gz")
    asked = parser.parse_args(arguments)
    try:
        made = calibrate(asked.step, path=asked.file, context=asked.context, host=asked.host)
    except CaptureError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        return 2
    for note in made.notes:
        print(f"plimsoll: {note}", file=sys.stderr)
    if made.context is not None:
        bare, training = (made.context[key] / (1 << 20) for key in ("bare", "training"))
        print(f"{made.gpu}: {bare:.1f} MiB when CUDA starts, {training:.1f} MiB while training")
    if made.host is not None:
        forward, backward = made.host["forward"], made.host["backward"]
        print(f"Python: {forward:.0f} µs a call of the forward, {backward:.0f} of the backward")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
