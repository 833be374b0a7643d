"""The file in which a calibration is kept: docs/formats/calibration.md.

Needs no torch: tools/make_calibration writes the same file from measurements.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..asking.shapes import Shape, cell

SCHEMA = "plimsoll.calibration/2"

# Bytes, or microseconds, of forward, backward_data and backward_weight, by the batch.
Series = Mapping[int, Sequence[Any]]


def file_lines(
    gpu: str,
    torch: str,
    cudnn: str,
    bytes_of: Mapping[Shape, Series],
    times_of: Mapping[Shape, Series] | None = None,
    calls: Mapping[str, Sequence[tuple[int, float | None]]] | None = None,
    context: Mapping[str, int] | None = None,
    clusters: Sequence[int] = (),
    host: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """A calibration file, line by line; the last one is the checksum of the others."""
    checksum = 0
    head: dict[str, Any] = {"gpu": gpu, "torch": torch, "cudnn": cudnn}
    if clusters:
        head["clusters"] = list(clusters)
    if context is not None:
        head["context"] = dict(context)
    if host is not None:
        head["host"] = {name: round(us, 2) for name, us in host.items()}
    for line in _content_lines(head, bytes_of, times_of or {}, calls or {}):
        checksum = zlib.crc32(line.encode() + b"\n", checksum)
        yield line
    yield f"crc32 {checksum:08x}"


def _content_lines(
    head: Mapping[str, Any],
    bytes_of: Mapping[Shape, Series],
    times_of: Mapping[Shape, Series],
    calls: Mapping[str, Sequence[tuple[int, float | None]]],
) -> Iterator[str]:
    memory = {shape: dict(sorted(series.items())) for shape, series in bytes_of.items() if series}
    # Where bf16 and fp16 agree at every batch that both have, one entry serves both.
    for shape in [shape for shape in memory if shape.dtype == "float16"]:
        twin = memory.get(shape._replace(dtype="bfloat16"))
        if twin and all(n in twin and list(twin[n]) == list(v) for n, v in memory[shape].items()):
            del memory[shape]
    times = {shape: dict(sorted(s.items())) for shape, s in times_of.items() if s}
    lists = sorted({tuple(series) for table in (memory, times) for series in table.values()})
    header = {"schema": SCHEMA, **head, "batches": lists}
    yield json.dumps(header, separators=(",", ":"))
    for shape, series in sorted(memory.items()):
        cells = [shape.key, str(lists.index(tuple(series)))]
        for direction in range(3):
            cells.append(cell([(n, v[direction]) for n, v in series.items()]))
        yield "\t".join(cells)
    for shape, series in sorted(times.items()):
        cells = [f"time {shape.key}", str(lists.index(tuple(series)))]
        for direction in range(3):
            cells.append(" ".join(f"{n}:{v[direction]:.1f}" for n, v in series.items()))
        yield "\t".join(cells)
    for key, taken in sorted(calls.items()):
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
        # Bytes that a process takes besides PyTorch's memory: "bare", and "training".
        self.context: dict[str, int] | None = None
        # Microseconds that the machine takes to issue calls: host.HostTimes.
        self.host: dict[str, float] | None = None
        # How many clusters of 1, 2, ... thread blocks the card holds at once, where it says so.
        self.clusters: tuple[int, ...] = ()
        # What could not be measured, and why.
        self.notes: list[str] = []

    def text(self) -> str:
        lines = file_lines(
            self.gpu,
            self.torch,
            self.cudnn,
            self.memory,
            self.times,
            self.calls,
            self.context,
            self.clusters,
            self.host,
        )
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
