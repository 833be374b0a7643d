"""Long but valid inputs, drawn at random: steps of many layers, snapshots of many events, tables of many buffers, logs.

Each is what an honest user may have, only longer; none is over 10 MB. tests/hostile/long_test.py runs the program on
them.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random

MOST_BYTES = 10_000_000


class _StepWriter:
    """A training loop as plimsoll.capture writes it: docs/formats/step.md."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.strings: dict[str, int] = {}
        self.layouts: dict[str, int] = {}
        self.storages = 0
        self.events: list[list] = []

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def layout(self, dtype: str, sizes: list) -> int:
        strides: list = [1] * len(sizes)
        for d in reversed(range(len(sizes) - 1)):
            strides[d] = _times(strides[d + 1], sizes[d + 1])
        return self.layouts.setdefault(json.dumps([dtype, sizes, strides]), len(self.layouts))

    def tensor(self, storage: int, sizes: list, flags: int = 0) -> dict:
        return {"t": [storage, self.layout("float32", sizes), flags]}

    def parameter(self, name: str, sizes: list) -> int:
        self.storages += 1
        layout = self.layout("float32", sizes)
        self.events.append(["parameter", self.storages, layout, self.string(name), True])
        return self.storages

    def call(self, op: str, module: str | None, thread: int, args: list, sizes: list) -> int:
        self.storages += 1
        total: int | list = 4
        for size in sizes:
            total = _times(total, size)
        module_index = -1 if module is None else self.string(module)
        place = self.string("train.py:7 in step")
        head = ["call", self.string(f"aten.{op}"), place, module_index, thread]
        result = self.tensor(self.storages, sizes)
        self.events.append([*head, args, {}, [result], [[self.storages, total, 0]]])
        return self.storages

    def free(self, storage: int) -> None:
        self.events.append(["free", storage])

    def document(self) -> bytes:
        variant = {"precision": "as_written", "events": self.events}
        return json.dumps(
            {
                "schema": "plimsoll.step/1",
                "torch": "2.11.0",
                "gpu": "H200",
                "model": self.name,
                "batches": [2, 3],
                "settings": {"matmul_tf32": False},
                "names_root": True,
                "strings": list(self.strings),
                "layouts": [json.loads(layout) for layout in self.layouts],
                "variants": [variant],
                "notes": [],
            },
            separators=(",", ":"),
        ).encode()


def _times(a, b):
    pair = [x * y for x, y in zip(_pair(a), _pair(b))]
    return pair[0] if pair[0] == pair[1] else pair


def _pair(number) -> list[int]:
    return number if isinstance(number, list) else [number, number]


def linear_step(layers: int, widths: list[int], rows: int = 1, depth: int = 1) -> bytes:
    """So many linear layers with a ReLU behind each, trained by Adam; `depth` levels of modules."""
    w = _StepWriter("Sequential")
    size = [widths[i % len(widths)] for i in range(layers + 1)]
    module = [".".join([*(["blocks"] * (depth - 1)), str(i)]) for i in range(layers)]
    weights = [w.parameter(f"{module[i]}.weight", [size[i + 1], size[i]]) for i in range(layers)]
    state: list[int] = []
    batch = [2 * rows, 3 * rows]
    before: list[int] = []
    for _ in range(3):
        w.events += [["step"], ["phase", "inputs"]]
        x = w.call("randn.default", None, 0, [], [batch, size[0]])
        w.events.append(["label", "input", [x]])
        for storage in before:
            w.free(storage)
        w.events.append(["phase", "forward"])
        kept = [x]
        for i in range(layers):
            inputs = [w.tensor(kept[-1], [batch, size[i]], 4)]
            inputs.append(w.tensor(weights[i], [size[i], size[i + 1]], 5))
            y = w.call("mm.default", module[i], 0, inputs, [batch, size[i + 1]])
            shape = [batch, size[i + 1]]
            kept.append(w.call("relu.default", module[i], 0, [w.tensor(y, shape, 4)], shape))
            w.free(y)
        w.events.append(["phase", "backward"])
        gradient = w.call("ones_like.default", None, 1, [], [batch, size[layers]])
        gradients = []
        for i in reversed(range(layers)):
            shape = [batch, size[i + 1]]
            args = [w.tensor(gradient, shape), w.tensor(kept[i + 1], shape, 4), 0]
            through = w.call("threshold_backward.default", module[i], 1, args, shape)
            w.free(gradient)
            w.free(kept[i + 1])
            args = [w.tensor(through, shape), w.tensor(weights[i], [size[i + 1], size[i]], 5)]
            gradient = w.call("mm.default", module[i], 1, args, [batch, size[i]])
            args = [w.tensor(through, [size[i + 1], batch], 1), w.tensor(kept[i], [batch, size[i]])]
            gradients.append(w.call("mm.default", module[i], 1, args, [size[i + 1], size[i]]))
            w.free(through)
        w.free(gradient)
        w.events += [["label", "gradient", gradients], ["phase", "optimizer"]]
        if not state:
            for i in range(layers):
                for _ in range(2):
                    shape = [size[i + 1], size[i]]
                    args = [w.tensor(weights[i], shape, 6)]
                    state.append(w.call("zeros_like.default", None, 0, args, shape))
            w.events.append(["label", "optimizer_state", list(state)])
        before = [x, *gradients]
        w.events.append(["phase", "other"])
    return w.document()


def long_step(draw: random.Random, most: int = MOST_BYTES) -> bytes:
    """Plain or packed, whichever is drawn; in both cases no longer than `most`."""
    widths = [draw.choice([8, 64, 256, 1024, 4096]) for _ in range(draw.randint(1, 5))]
    rows, depth = draw.choice([1, 16, 512]), draw.randint(1, 3)
    layers = int(10 ** draw.uniform(2, 4.3))
    packed = draw.random() < 0.3

    def made(layers: int) -> bytes:
        step = linear_step(layers, widths, rows, depth)
        return gzip.compress(step, 1, mtime=0) if packed else step

    # By one of a thousand layers it is known about how many are too many.
    layers = min(layers, 1000 * most // len(made(1000)))
    while len(step := made(layers)) > most:
        layers = layers * 9 // 10
    return step


def snapshot(events: int, alive: int, sizes: list[int], draw: random.Random) -> bytes:
    """What torch.cuda.memory._snapshot() gives of a job that keeps so many blocks alive on the average."""
    frames = [
        {"name": f"f{i}", "filename": "/home/u/train.py", "line": 10 + i} for i in range(30)
    ]
    trace: list[dict] = []
    segments: list[dict] = []
    live: list[tuple[int, int]] = []
    free: dict[int, list[int]] = {}
    top, clock = 0x7F0000000000, 0
    while len(trace) < events:
        clock += 5
        if live and draw.random() < len(live) / (2.0 * alive):
            address, size = live.pop(draw.randrange(len(live)))
            for action in ("free_requested", "free_completed"):
                trace.append(_event(action, address, size, frames, draw, clock))
            free.setdefault(size, []).append(address)
            continue
        size = draw.choice(sizes)
        block = (size + 511) // 512 * 512
        if not free.get(size):
            total = max(20 << 20, (block + (2 << 20) - 1) & ~((2 << 20) - 1))
            if block <= 1 << 20:
                total = 2 << 20
            segments.append({"address": top, "total_size": total, "size": block})
            trace.append(_event("segment_alloc", top, total, frames, draw, clock))
            free.setdefault(size, []).extend(
                top + i * block for i in reversed(range(max(1, total // block)))
            )
            top += total
        address = free[size].pop()
        live.append((address, size))
        trace.append(_event("alloc", address, size, frames, draw, clock))
    return pickle.dumps(
        {
            "segments": [_segment(s, live) for s in segments],
            "device_traces": [trace],
            "allocator_settings": {"expandable_segments": False},
        },
        protocol=4,
    )


def _event(action: str, address: int, size: int, frames: list, draw: random.Random, clock: int) -> dict:
    first = draw.randrange(len(frames) - 4)
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": clock,
        "frames": frames[first : first + 4],
    }


def _segment(segment: dict, live: list[tuple[int, int]]) -> dict:
    begin, total = segment["address"], segment["total_size"]
    blocks = [
        {"address": a, "size": (s + 511) // 512 * 512, "requested_size": s, "state": "active_allocated"}
        for a, s in live
        if begin <= a < begin + total
    ]
    held = sum(block["size"] for block in blocks)
    return {
        "address": begin,
        "total_size": total,
        "stream": 0,
        "segment_type": "large" if total > 2 << 20 else "small",
        "allocated_size": held,
        "active_size": held,
        "blocks": sorted(blocks, key=lambda block: block["address"]),
        "device": 0,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
    }


def long_snapshot(draw: random.Random, most: int = MOST_BYTES) -> bytes:
    sizes = [draw.randint(1, 1 << draw.randint(9, 26)) for _ in range(draw.randint(2, 60))]
    events, alive = int(10 ** draw.uniform(3.5, 5)), int(10 ** draw.uniform(1, 3.7))
    while True:
        made = snapshot(events, alive, sizes, draw)
        if len(made) <= most:
            return made
        events = events * 2 // 3


def long_table(draw: random.Random, most: int = MOST_BYTES) -> bytes:
    """Buffers for `pack`: short and long lives, few or many sizes."""
    rows = int(10 ** draw.uniform(3, 5.4))
    ticks = draw.choice([100, rows, 10 * rows])
    longest = max(1, int(ticks * 10 ** draw.uniform(-4, 0)))
    sizes = [draw.randint(1, 1 << 30) for _ in range(draw.choice([2, 50, 5000]))]
    lines = ["id,lower,upper,size"]
    length = 0
    for i in range(rows):
        lower = draw.randrange(ticks)
        lines.append(f"b{i},{lower},{lower + draw.randint(1, longest)},{draw.choice(sizes)}")
        length += len(lines[-1]) + 1
        if length > most - 100:
            break
    return "\n".join([*lines, ""]).encode()


def _traceback(draw: random.Random, rank: str) -> list[str]:
    lines = [f"{rank}Traceback (most recent call last):"]
    for depth in range(draw.randint(1, 40)):
        name = draw.choice(["forward", "_call_impl", "step", "main", "train", "_wrapped_call_impl"])
        lines.append(f'{rank}  File "/home/me/{draw.choice("abcdef")}/train.py", line {draw.randint(1, 999)}, in {name}')
        lines.append(f"{rank}    x = layer_{depth}(x)")
    total = draw.choice([8, 23.65, 79.15, 139.8])
    used = total - draw.uniform(0, 2)
    allocated = used * draw.uniform(0.5, 0.99)
    lines.append(
        f"{rank}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {draw.uniform(0.1, 9):.2f} GiB. GPU "
        f"{draw.randint(0, 7)} has a total capacity of {total:.2f} GiB of which {total - used:.2f} GiB is free. "
        f"Including non-PyTorch memory, this process has {used:.2f} GiB memory in use. Of the allocated memory "
        f"{allocated:.2f} GiB is allocated by PyTorch, and {used - allocated:.2f} GiB is reserved by PyTorch but "
        f"unallocated."
    )
    return lines


def _deaths(length: int) -> bytes:
    """Nothing but deaths, each of another rank."""
    lines: list[str] = []
    written = 0
    while written < length:
        lines.append(f"[rank{len(lines)}]: CUDA out of memory. Tried to allocate 2.00 GiB.")
        written += len(lines[-1]) + 1
    return ("\n".join(lines) + "\n").encode()


def long_log(draw: random.Random, most: int = MOST_BYTES) -> bytes:
    """Steps, bars of progress and warnings; now and then a traceback, of one rank or of several."""
    length = int(10 ** draw.uniform(5, 7))
    if draw.random() < 0.15:
        return _deaths(min(length, most) - 100)
    dying = draw.choice([0.0001, 0.001, 0.02])
    ranks = draw.choice([1, 1, 8, 64])
    out: list[str] = []
    written = 0
    step = 0
    while written < min(length, most) - 12_000:
        step += 1
        rank = f"[rank{draw.randrange(ranks)}]: " if ranks > 1 else ""
        lines = draw.choice(
            [
                [f"{rank}step {step} loss {draw.random():.4f} mem {draw.uniform(1, 80):.2f}GiB"],
                [f"\r{step % 100}%|{'#' * (step % 50)}| {step}/99999 [00:{step % 60:02d}<1:00:00, 3.1it/s]"],
                [f"{rank}UserWarning: lr_scheduler.step() before optimizer.step()"],
                [f"{rank}{draw.getrandbits(256):x}" * draw.randint(1, 20)],
            ]
        )
        if draw.random() < dying:
            lines = _traceback(draw, rank)
        out += lines
        written += sum(len(line) + 1 for line in lines)
    out += _traceback(draw, "")
    return ("\n".join(out) + "\n").encode()
