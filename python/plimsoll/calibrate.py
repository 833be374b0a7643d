"""plimsoll.calibrate: what the operators of a captured step really take on the GPU that is here.

The file that it writes is described in docs/formats/calibration.md. Torch is imported where it is
needed only: tools/make_calibration writes the same file from measurements, without it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Union

from .errors import CaptureError

if TYPE_CHECKING:
    from .api import Capture

SCHEMA = "plimsoll.calibration/1"
STEP_SCHEMA = "plimsoll.step/1"
USUAL_BATCHES = (1, 4, 8, 16, 32, 64)
# Those that the reader tells apart; of the rest it has rules only.
_CONVOLVED = ("float32", "bfloat16", "float16")
_PRODUCTS = frozenset(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation")
)
_NEEDS_GRAD = 4
# What torch calls a card, where `plimsoll gpus` has another name. Vendors' words are cut off first.
_CATALOGUE = {
    "A100-PCIE-40GB": "A100 40GB PCIe",
    "A100-SXM4-40GB": "A100 40GB SXM",
    "A100-SXM4-80GB": "A100 80GB SXM",
    "GH200 480GB": "GH200",
    "H100 80GB HBM3": "H100 SXM",
    "P100-PCIE-16GB": "P100 16GB",
    "RTX 6000 Ada Generation": "RTX 6000 Ada",
    "RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell",
    "RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
    "V100-PCIE-16GB": "V100 16GB PCIe",
    "V100-PCIE-32GB": "V100 32GB PCIe",
    "V100-SXM2-16GB": "V100 16GB SXM",
    "V100-SXM2-32GB": "V100 32GB SXM",
}

Point = tuple[int, int]  # a batch, and bytes


class Shape(NamedTuple):
    """A convolution without its batch, as the reader tells them apart."""

    dtype: str
    channels_last: int
    # c, h, w, k, kh, kw, then stride, padding and dilation by height and width, and groups.
    sizes: tuple[int, ...]
    transposed: int

    @property
    def key(self) -> str:
        """As KeyOf in src/step/calibration.cc builds it."""
        c, h, w, k, kh, kw, sh, sw, ph, pw, dh, dw, groups = self.sizes
        layout = "nhwc" if self.channels_last else "nchw"
        text = f"{self.dtype} {layout} {c},{h},{w} {k},{kh},{kw} {sh},{sw} {ph},{pw} {dh},{dw}"
        return f"{text} {groups}" + (" transposed" if self.transposed else "")


# Bytes, or microseconds, of forward, backward_data and backward_weight, by the batch.
Series = Mapping[int, Sequence[Any]]


def reduced(points: Sequence[Point]) -> list[Point]:
    """Without those that lie on the line through their neighbours, to the byte: the reader puts
    them back."""
    kept, i = [points[0]], 0
    while i < len(points) - 1:
        j = len(points) - 1
        while j > i + 1 and not _on_line(points[i], points[i + 1 : j], points[j]):
            j -= 1
        kept.append(points[j])
        i = j
    return kept


def _on_line(a: Point, between: Sequence[Point], b: Point) -> bool:
    return all(a[1] + (p[0] - a[0]) * (b[1] - a[1]) // (b[0] - a[0]) == p[1] for p in between)


def file_lines(
    gpu: str,
    torch: str,
    cudnn: str,
    bytes_of: Mapping[Shape, Series],
    times_of: Mapping[Shape, Series] | None = None,
    calls: Mapping[str, Sequence[tuple[int, float | None]]] | None = None,
) -> Iterator[str]:
    """A calibration file, line by line."""
    memory = {shape: dict(sorted(series.items())) for shape, series in bytes_of.items() if series}
    # Where bf16 and fp16 agree at every batch that both have, one entry serves both.
    for shape in [shape for shape in memory if shape.dtype == "float16"]:
        twin = memory.get(shape._replace(dtype="bfloat16"))
        if twin and all(n in twin and list(twin[n]) == list(v) for n, v in memory[shape].items()):
            del memory[shape]
    times = {shape: dict(sorted(s.items())) for shape, s in (times_of or {}).items() if s}
    lists = sorted({tuple(series) for table in (memory, times) for series in table.values()})
    header = {"schema": SCHEMA, "gpu": gpu, "torch": torch, "cudnn": cudnn, "batches": lists}
    yield json.dumps(header, separators=(",", ":"))
    for shape, series in sorted(memory.items()):
        cells = [shape.key, str(lists.index(tuple(series)))]
        for direction in range(3):
            points = reduced([(n, v[direction]) for n, v in series.items()])
            cells.append(" ".join(f"{n}:{size}" for n, size in points))
        yield "\t".join(cells)
    for shape, series in sorted(times.items()):
        cells = [f"time {shape.key}", str(lists.index(tuple(series)))]
        for direction in range(3):
            cells.append(" ".join(f"{n}:{v[direction]:.1f}" for n, v in series.items()))
        yield "\t".join(cells)
    for key, taken in sorted((calls or {}).items()):
        yield "\t".join([f"time {key}", *(_taken(*each) for each in taken)])


def _taken(size: int, time: float | None) -> str:
    return str(size) if time is None else f"{size} {time:.1f}"


class Calibration:
    """What was measured on one GPU."""

    def __init__(self, gpu: str, torch: str, cudnn: str) -> None:
        self.gpu = gpu
        self.torch = torch
        self.cudnn = cudnn
        # Temporary bytes and microseconds of forward, backward_data and backward_weight.
        self.memory: dict[Shape, dict[int, tuple[int, int, int]]] = {}
        self.times: dict[Shape, dict[int, tuple[float, float, float]]] = {}
        # Of each matrix product, (bytes, microseconds); of each attention, also its backward.
        self.calls: dict[str, list[tuple[int, float | None]]] = {}
        # What could not be measured, and why.
        self.notes: list[str] = []

    def text(self) -> str:
        lines = file_lines(self.gpu, self.torch, self.cudnn, self.memory, self.times, self.calls)
        return "".join(line + "\n" for line in lines)

    def write(self, path: str | os.PathLike[str]) -> None:
        """As docs/formats/calibration.md describes it, packed where the name ends in .gz."""
        text = self.text().encode()
        if os.fspath(path).endswith(".gz"):
            text = gzip.compress(text, mtime=0)
        with open(path, "wb") as file:
            file.write(text)

    def __repr__(self) -> str:
        return (
            f"<plimsoll.Calibration of {self.gpu}: {len(self.memory)} convolutions, "
            f"{len(self.calls)} matrix products and attentions>"
        )


def calibrate(
    step_or_capture: Capture | str | os.PathLike[str],
    *,
    batches: Iterable[int] | None = None,
    path: str | os.PathLike[str] | None = None,
    time: bool = True,
) -> Calibration:
    """Runs each distinct convolution, attention and matrix product of a captured step on the GPU
    of this machine, at these batch sizes, and notes the temporary memory and the time that it
    takes. `docs/calibrate.md` tells what that is good for."""
    document = _document(step_or_capture)
    sizes = _sizes(document, batches)
    work = collect(document, sizes)
    if not work.convolutions and not work.calls:
        raise CaptureError("this step has no convolution, attention or matrix product to measure")
    torch = _torch_with_gpu()
    made = Calibration(
        gpu_name(torch.cuda.get_device_name()),
        torch.__version__.split("+")[0],
        cudnn_release(torch.backends.cudnn.version()),
    )
    made.notes += work.notes
    settings = document.get("settings", {})
    try:
        with _as_captured(torch, settings):
            measure(work, Gauge(torch, time, bool(settings.get("cudnn_benchmark"))), made)
    finally:
        torch.cuda.empty_cache()
    if path is not None:
        made.write(path)
    return made


# The step.


def _document(step: Any) -> dict[str, Any]:
    document = getattr(step, "document", None)
    if document is None:
        document = _read(os.fspath(step))
    if not isinstance(document, dict) or document.get("schema") != STEP_SCHEMA:
        raise CaptureError(f"{step} is not a step file", hint="plimsoll.capture makes one")
    return document


def _read(path: str) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        raise CaptureError(f"{path} is packed with zstd", hint=f"Unpack it first: zstd -d {path}")
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        elif data.startswith(b"\xfd7zXZ"):
            data = lzma.decompress(data)
        return json.loads(data)
    except (ValueError, OSError, EOFError, lzma.LZMAError):
        return None


def _sizes(document: dict[str, Any], batches: Iterable[int] | None) -> list[int]:
    if batches is None:
        return sorted({*document["batches"], *USUAL_BATCHES})
    sizes = [batches] if isinstance(batches, int) else list(batches)
    if not sizes or any(type(n) is not int or n < 1 for n in sizes):
        raise CaptureError(f"`batches` is {batches!r}", hint="Give sizes such as (8, 16, 32)")
    return sorted(set(sizes))


class Layout(NamedTuple):
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    needs_grad: bool = False

    def __str__(self) -> str:
        return f"{_commas(self.sizes)}:{_commas(self.strides)}"


def _commas(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


class Convolution(NamedTuple):
    """How to run a convolution, at any batch."""

    shape: Shape
    input: tuple[int, ...]  # without the batch
    weight: tuple[int, ...]
    settings: tuple[Any, ...]  # stride, padding, dilation, transposed, output_padding, groups


class Call(NamedTuple):
    """A matrix product or an attention, with everything that it was given."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> str:
        tensors = [arg for arg in self.args if isinstance(arg, Layout)]
        named = [f"{name}={_plain(value)}" for name, value in self.kwargs]
        if self.op == "plimsoll.attention":
            query, key, value, mask, dropout, causal = _attention_args(self.args)
            words = ["attention", query.dtype, str(query), str(key), str(value)]
            words += [f"mask={mask.dtype}:{mask}"] if mask else []
            words += [f"dropout={dropout}"] if dropout else []
            words += ["causal"] if causal else []
            if not any(tensor.needs_grad for tensor in tensors):
                words.append("no_grad")
            return " ".join(words + named)
        name = self.op.split(".")[1]
        rest = [_plain(arg) for arg in self.args if not isinstance(arg, Layout)]
        return " ".join([name, tensors[0].dtype, *map(str, tensors), *rest, *named])


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _attention_args(args: Sequence[Any]) -> tuple[Layout, Layout, Layout, Any, float, bool]:
    full = list(args) + [None, 0.0, False][len(args) - 3 :]
    query, key, value, mask, dropout, causal = full
    return query, key, value, mask, dropout, causal


class Work(NamedTuple):
    """What is to be measured: convolutions with their batches, and the calls of each place in the
    step, by growing batch."""

    convolutions: dict[Shape, tuple[Convolution, list[int]]]
    calls: list[list[Call]]
    notes: list[str]


def collect(document: dict[str, Any], batches: Sequence[int]) -> Work:
    """Each distinct convolution, attention and matrix product of a step, in all its variants."""
    strings = document["strings"]
    work = Work({}, [], [])
    seen = set()
    for variant in document["variants"]:
        for event in variant["events"]:
            if event[0] != "call":
                continue
            op = strings[event[1]]
            kind = _kind(op)
            # The same place in a later step differs in its storages alone.
            told = (op, _without_storages(event[5]), _without_storages(event[6])) if kind else None
            if told is None or told in seen:
                continue
            seen.add(told)
            at = [_AtBatch(document, n) for n in batches]
            if kind == "convolution":
                _add_convolution(work, op, event[5], at)
            else:
                _add_call(work, op, event[5], event[6], at)
    return work


def _kind(op: str) -> str | None:
    if op.startswith(("aten.convolution.", "aten.convolution_backward.")):
        return "convolution"
    return "call" if op in _PRODUCTS or op == "plimsoll.attention" else None


def _without_storages(value: Any) -> str:
    return re.sub(r'\{"t": \[\d+, ', '{"t": [', json.dumps(value))


class _AtBatch:
    """The numbers of a step, at one batch."""

    def __init__(self, document: dict[str, Any], batch: int) -> None:
        self._layouts = document["layouts"]
        self._strings = document["strings"]
        self._first, second = document["batches"]
        self._run = second - self._first
        self._batch = batch

    def number(self, number: Any) -> int:
        """As AtBatch::Of in src/step/call.cc has it."""
        if not isinstance(number, list):
            return int(number)
        rise = (self._batch - self._first) * (number[1] - number[0])
        return int(number[0] + abs(rise) // self._run * (1 if rise >= 0 else -1))

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self.value(element) for element in value)
        if not isinstance(value, dict):
            return value
        if "t" in value:
            dtype, sizes, strides = self._layouts[value["t"][1]]
            return Layout(
                dtype,
                tuple(map(self.number, sizes)),
                tuple(map(self.number, strides)),
                bool(value["t"][2] & _NEEDS_GRAD),
            )
        return self.number(value["n"]) if "n" in value else self._strings[value["text"]]


def _can_be(values: Iterable[Any]) -> bool:
    """Whether all tensors have a size at this batch."""
    return all(min(v.sizes, default=1) > 0 for v in values if isinstance(v, Layout))


def _add_convolution(work: Work, op: str, args: Any, at: Sequence[_AtBatch]) -> None:
    backward = op.startswith("aten.convolution_backward.")
    for each in at:
        given = each.value(args)
        input, weight, *settings = (*given[1:3], *given[4:10]) if backward else (
            *given[0:2], *given[3:9])  # fmt: skip
        if input.dtype not in _CONVOLVED:
            note = f"convolutions of {input.dtype} are not measured"
            if note not in work.notes:
                work.notes.append(note)
            return
        if not _can_be((input, weight)) or len(input.sizes) not in (3, 4, 5):
            continue
        shape = shape_of(input, weight, settings)
        how = Convolution(shape, input.sizes[1:], weight.sizes, tuple(settings))
        batches = work.convolutions.setdefault(shape, (how, []))[1]
        if input.sizes[0] not in batches:
            batches.append(input.sizes[0])
            batches.sort()


def shape_of(input: Layout, weight: Layout, settings: Sequence[Any]) -> Shape:
    """As ShapeOf in src/step/rules/convolution.cc: one dimension is two with a height of 1, and of
    three the depth goes to the height."""
    stride, padding, dilation, transposed, _, groups = settings
    h = w = kh = kw = 1
    *heights, w = input.sizes[2:]
    *kernel_heights, kw = weight.sizes[2:]
    for size, kernel in zip(heights, kernel_heights):
        h, kh = h * size, kh * kernel
    sizes = [input.sizes[1], h, w]
    sizes += [weight.sizes[1] * groups if transposed else weight.sizes[0], kh, kw]
    for setting, otherwise in ((stride, 1), (padding, 0), (dilation, 1)):
        full = setting if len(setting) == len(heights) + 1 else setting[:1] * (len(heights) + 1)
        sizes += [max((otherwise, *full[:-1])), full[-1]]
    channels_last = _like_channels_last(input) or _like_channels_last(weight)
    return Shape(input.dtype, int(channels_last), (*sizes, groups), int(transposed))


def _like_channels_last(layout: Layout) -> bool:
    """As torch takes it: is_channels_last_strides_2d."""
    if len(layout.sizes) != 4 or layout.strides[1] == 0:
        return False
    least = 0
    for d in (1, 3, 2, 0):
        if layout.sizes[d] == 0 or layout.strides[d] < least:
            return False
        if d == 0 and least == layout.strides[1]:
            return False
        least = layout.strides[d] * max(layout.sizes[d], 1)
    return True


def _add_call(work: Work, op: str, args: Any, kwargs: Any, at: Sequence[_AtBatch]) -> None:
    calls: list[Call] = []
    for each in at:
        given = each.value(args)
        named = tuple(sorted((name, each.value(value)) for name, value in kwargs.items()))
        call = Call(op, given, named)
        if _can_be(given) and call not in calls:
            calls.append(call)
    if calls and calls not in work.calls:
        work.calls.append(calls)


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
    *layouts, dropout, causal = _attention_args(call.args)
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
