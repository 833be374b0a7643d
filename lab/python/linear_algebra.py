"""What decompositions and inverses of matrices take beside their results. Two steps:

    linear_algebra.py measure OUT.jsonl              on a GPU: every allocation of every call
    linear_algebra.py capture MEASURED OUT.jsonl.xz  without one: the calls as a capture sees them

A line of what `capture` writes is {"row": as measured, "step": as captured}, as in
tests/data/operators: tests of the rules hold one against the other.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import sys
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor

_L = torch.linalg
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "eigh": _L.eigh,
    "eigvalsh": _L.eigvalsh,
    "qr": _L.qr,
    "qr_complete": lambda a: _L.qr(a, mode="complete"),
    "cholesky": _L.cholesky,
    "cholesky_ex": _L.cholesky_ex,
    "svd": lambda a: _L.svd(a, full_matrices=False),
    "svdvals": _L.svdvals,
    "inv": _L.inv,
    "solve": lambda a: _L.solve(a, a),
    "solve1": lambda a: _L.solve(a, a[..., :1].contiguous()),
    "lu_factor": _L.lu_factor,
    "det": _L.det,
    "slogdet": _L.slogdet,
    "solve_triangular": lambda a: _L.solve_triangular(a.tril(), a, upper=False),
    "cholesky_inverse": torch.cholesky_inverse,
    "cholesky_solve": lambda a: torch.cholesky_solve(a, a),
    "pinv": _L.pinv,
}
_ANY_SHAPE = ("qr", "qr_complete", "svd", "svdvals", "pinv")
_SIDES = (16, 32, 33, 64, 128, 200, 256, 384, 512, 768, 1000, 1024, 1536, 2048, 3072)
_SHAPES = [
    *((n, n) for n in _SIDES),
    *((count, n, n) for count in (1, 2, 4, 16) for n in (16, 32, 64, 256, 512, 1024)),
    *((2048, 512), (512, 2048), (1024, 64), (4, 512, 128)),
]
_LARGEST_DOUBLE = 1024


def rows() -> list[dict[str, Any]]:
    return [
        {"op": name, "shape": list(shape), "dtype": dtype}
        for dtype in ("float32", "float64")
        for name in FUNCTIONS
        for shape in _SHAPES
        if (shape[-1] == shape[-2] or name in _ANY_SHAPE)
        and (dtype == "float32" or (len(shape) == 2 and shape[0] <= _LARGEST_DOUBLE))
    ]


def matrices(row: dict[str, Any]) -> Tensor:
    """Those that are square can be decomposed in every way."""
    options: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, row["dtype"])}
    a = torch.randn(*row["shape"], **options)
    n = row["shape"][-1]
    return a @ a.mT + n * torch.eye(n, **options) if row["shape"][-2] == n else a


def measure(options: argparse.Namespace) -> int:
    memory = torch.cuda.memory
    with options.measured.open("w") as file:
        for row in rows():
            a = matrices(row)
            for _ in range(2):  # the first call makes what the library keeps
                torch.cuda.synchronize()
                memory._record_memory_history(enabled=None)
                memory._record_memory_history(max_entries=100_000)
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                result = FUNCTIONS[row["op"]](a)
                torch.cuda.synchronize()
                row["peak"] = torch.cuda.max_memory_allocated() - before
                row["left"] = torch.cuda.memory_allocated() - before
                trace = memory._snapshot()["device_traces"][0]
                del result
            row["events"] = [
                [event["action"], event["size"], event["addr"]]
                for event in trace
                if event["action"] in ("alloc", "free_requested")
            ]
            file.write(json.dumps(row) + "\n")
    return 0


def capture(options: argparse.Namespace) -> int:
    from capture_operators import CallRecorder, document, own_storages
    from torch._subclasses.fake_tensor import FakeTensorMode

    from plimsoll.base.gpus import capability
    from plimsoll.capturing.compiling import Compiling
    from plimsoll.capturing.session import recording
    from plimsoll.world.device import phantom_device
    from plimsoll.world.model import OnDevice, building

    measured = [json.loads(line) for line in options.measured.read_text().splitlines()]
    gc.disable()
    with phantom_device("H200"), FakeTensorMode(allow_non_fake_inputs=True):
        empty, card = OnDevice(torch.nn.Module(), {}, {}), capability("H200") or (9, 0)
        with recording(empty, card, Compiling("H200", print), print) as recorder:
            calls = CallRecorder(recorder)
            with building():
                for row in measured:
                    function, a = FUNCTIONS.get(row["op"]), matrices(row)
                    if function is not None:
                        calls.call(row, "forward", lambda f=function, a=a: f(a))
    gc.enable()
    lines = []
    for row, events, _ in calls.cut:
        if "error" in row:
            print(f"{row['op']} {row['shape']}: {row['error']}")
            continue
        told = {key: row[key] for key in ("op", "shape", "dtype", "peak", "left")}
        step = document(own_storages(events), recorder)
        lines.append(json.dumps({"row": told, "step": step}, separators=(",", ":")) + "\n")
    packed = lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    options.out.write_bytes(packed)
    print(f"{len(lines)} of {len(measured)} rows captured, {len(packed)} bytes")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("measure")
    command.add_argument("measured", type=Path)
    command.set_defaults(call=measure)
    command = commands.add_parser("capture")
    command.add_argument("measured", type=Path)
    command.add_argument("out", type=Path)
    command.set_defaults(call=capture)
    options = parser.parse_args()
    result: int = options.call(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
