"""Captures measured single calls: capture_operators.py OUT [--kind ops|attention] [--data DIR].

Runs `ops()` or `attention()` of tools/ops.py itself, on fake tensors, with its recorder of the
GPU's allocator replaced. Writes OUT/<kind>.step.jsonl.gz, one step file a line (inputs, then phase
forward, then phase backward; for an optimizer the directions step1, step2, ... in order, each a
phase `optimizer`), and OUT/<kind>.index.json: [{"row", "line"}] where "row" counts the lines of the
measured file from 0. Prints in how many calls of optimizers the allocations and frees are the
measured ones.
"""

from __future__ import annotations

import argparse
import collections
import gc
import gzip
import json
import lzma
import random
import sys
from pathlib import Path
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo_jobs import load_tool

from plimsoll.base.gpus import capability
from plimsoll.capturing.compiling import Compiling
from plimsoll.capturing.session import recording
from plimsoll.events.event import Call, Event, Free, NewStorage, Phase, Recorded, Tensor
from plimsoll.events.merge import merged
from plimsoll.events.points import Points
from plimsoll.events.recorder import Recorder
from plimsoll.events.step_file import Tables
from plimsoll.world.device import phantom_device
from plimsoll.world.model import OnDevice, building

_SHARED = Path(__file__).resolve().parents[3] / "shared"
_PHASE = {"forward": "forward", "backward": "backward"}
# How the measured files were made: with which seeds, and what tells one row from another.
_SHARDS = {"ops": 1, "attention": 3}
_MOST = 700
_SETTINGS = {
    "ops": ("op", "dtype", "shape", "layout", "vocab", "name", "impl"),
    "attention": (
        "dtype",
        "batch",
        "heads",
        "kv_heads",
        "seq",
        "kv_seq",
        "head_dim",
        "mask",
        "dropout",
        "strides",
    ),
}


class CallRecorder:
    """In place of ops.Recorder: cuts the stream of events into rows and calls."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._row: Any = None
        self._begins = 0
        #: (row, its events, [(direction, begin, end)] in them)
        self.cut: list[tuple[dict[str, Any], list[Any], list[tuple[str, int, int]]]] = []

    def call(self, row: dict[str, Any], direction: str, run: Callable[[], Any]) -> Any:
        events = self._recorder.events
        if row is not self._row:
            self._row = row
            self.cut.append((row, [], []))
        self._recorder.phase(_PHASE.get(direction, "optimizer"))
        begin = len(events)
        try:
            out = run()
        except Exception as error:
            out = None
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        end = len(events)
        self._recorder.phase("inputs")
        _, told, calls = self.cut[-1]
        shift = len(told) - self._begins
        calls.append((direction, begin + shift, end + shift))
        told += events[self._begins :]
        self._begins = len(events)
        return out

    def finish(self) -> None:
        pass


def own_storages(events: list[Event]) -> list[Event]:
    """Of one row, with its storages counted from 1 and without the frees of earlier rows'."""
    known: dict[int, int] = {0: 0}

    def value(told: Any) -> Any:
        if isinstance(told, Tensor):
            return told._replace(storage=known.setdefault(told.storage, len(known)))
        return [value(part) for part in told] if isinstance(told, list) else told

    def own(new: NewStorage) -> NewStorage:
        return new._replace(storage=known.setdefault(new.storage, len(known)))

    kept: list[Event] = []
    for event in events:
        if isinstance(event, Call):
            args, kwargs = value(event.args), {key: value(v) for key, v in event.kwargs.items()}
            made = [own(new) for new in event.made]
            kept.append(Call(event.op, event.place, args, kwargs, value(event.results), made))
        elif isinstance(event, Free):
            is_own = event.storage in known
            kept.append(Free(known[event.storage]) if is_own else Phase("inputs"))
        else:
            kept.append(event)
    return kept


def record(tools: str, kind: str) -> tuple[list[Any], CallRecorder, Recorder]:
    ops = load_tool(tools, "ops")
    rows: list[Any] = []
    gc.disable()
    with phantom_device("H200"), FakeTensorMode(allow_non_fake_inputs=True):

        def note(text: str) -> None:
            pass

        empty, card = OnDevice(torch.nn.Module(), {}, {}), capability("H200") or (9, 0)
        with recording(empty, card, Compiling("H200", note), note) as recorder:
            calls = CallRecorder(recorder)
            ops.Recorder = lambda: calls
            with building():
                for shard in range(_SHARDS[kind]):
                    getattr(ops, kind)(rows, _MOST, random.Random(1000 + shard))
    gc.enable()
    return rows, calls, recorder


def matched(kind: str, rows: list[Any], measured: list[Any]) -> dict[int, int]:
    """Which row of the measured file each captured row is, by the captured row's id. Both come in
    the same order; the measured file may lack some."""
    found: dict[int, int] = {}
    ours = iter(rows)
    for number, truth in enumerate(measured):
        for row in ours:
            if all(row.get(key) == truth.get(key) for key in _SETTINGS[kind]):
                found[id(row)] = number
                break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=sorted(_SHARDS), default="ops")
    parser.add_argument("--data", type=Path, default=_SHARED / "data" / "operators")
    parser.add_argument("--tools", default=str(_SHARED / "tools"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with lzma.open(options.data / f"{options.kind}.jsonl.xz", "rt") as file:
        measured = [json.loads(line) for line in file]
    rows, calls, recorder = record(options.tools, options.kind)
    numbers = matched(options.kind, rows, measured)
    index, lines = [], []
    equal: collections.Counter[str] = collections.Counter()
    for row, events, directions in calls.cut:
        number = numbers.get(id(row))
        if number is None:
            continue
        if "error" in row:
            print(f"row {number} {row.get('op', '')}: {row['error']}")
            continue
        own = own_storages(events)
        if row.get("op") == "optimizer":
            compare_optimizer(row, measured[number], own, directions, equal)
        index.append({"row": number, "line": len(lines)})
        lines.append(json.dumps(document(own, recorder), separators=(",", ":")))
    with gzip.open(options.out / f"{options.kind}.step.jsonl.gz", "wt", compresslevel=5) as file:
        file.write("\n".join(lines) + "\n")
    (options.out / f"{options.kind}.index.json").write_text(json.dumps(index))
    print(f"{len(lines)} of {len(measured)} rows captured {dict(equal) or ''}")
    return 0


def document(events: list[Any], recorder: Recorder) -> dict[str, Any]:
    tables, points = Tables(), Points.of_batches((1, 2))
    run = Recorded(events, recorder.layouts)
    rows = tables.rows(merged([run, run], tables, points, print))
    return {
        **points.head(),
        "torch": str(torch.__version__),
        "gpu": "H200",
        "model": "",
        "settings": {},
        "variants": [{"precision": "as_written", "events": rows}],
        **tables.document(),
        "notes": [],
    }


def compare_optimizer(
    row: dict[str, Any],
    truth: dict[str, Any],
    events: list[Any],
    directions: list[tuple[str, int, int]],
    equal: collections.Counter[str],
) -> None:
    for direction, begin, end in directions:
        signed = sequence(events, begin, end)
        what = "step" if direction.startswith("step") else direction
        if signed == truth.get(direction, []):
            equal[f"{what} equal"] += 1
        else:
            equal[f"{what} not"] += 1
            print(
                f"{row['name']} {row['impl']} {direction}: captured {_brief(signed)} "
                f"measured {_brief(truth.get(direction, []))}"
            )


def sequence(events: list[Any], begin: int, end: int) -> list[int]:
    """+bytes and -bytes, in order, of a row's events from begin to end."""
    sizes: dict[int, int] = {}
    signed = []
    for position, event in enumerate(events[:end]):
        if isinstance(event, Call):
            sizes.update({new.storage: int(new.size) for new in event.made})
            signed += [int(new.size) for new in event.made if position >= begin]
        elif isinstance(event, Free) and position >= begin:
            signed.append(-sizes[event.storage])
    return signed


def _brief(signed: list[int]) -> str:
    return f"{len(signed)}: {signed[:16]}"


if __name__ == "__main__":
    sys.exit(main())
