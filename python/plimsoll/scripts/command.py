"""`python -m plimsoll.script -o job.step.json.gz -- python train.py --batch-size {batch}`

Runs an unedited training script on fake tensors, once for each of two batch sizes, and writes the
step file that plimsoll.capture would. `plimsoll predict --run` starts this. docs/predict_run.md.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ..base.errors import CaptureError
from ..base.output import check_output
from ..base.sizes import whole_number
from ..events.event import HostPeak, PartBegin
from ..events.inputs import changing_sizes
from ..events.merge import merged, steps_of
from ..events.step_file import SCHEMA, Tables
from .keeper import end_with_parent, how_it_ended, run_beside
from .launchers import PLACE, at_batch, ranks_of, script_of
from .progress import Progress, said
from .run import HostPeaks, Run, RunResult, Stretch, read_outcome

#: Small, for the host: data sets of examples have few samples.
BATCHES = (4, 8)
_LAST_LINES = 15


def capture_script(
    command: list[str], batches: tuple[int, int] | None, gpu: str, own_batch: bool
) -> dict[str, Any]:
    """The step file's document. `own_batch`: {batch} stands in the command."""
    words = script_of(command)
    ranks = ranks_of(command)
    if batches is None:
        # Of a batch that the script shares out each rank has as much as one alone would.
        shares = max(ranks, 1) if own_batch else 1
        batches = (BATCHES[0] * shares, BATCHES[1] * shares)
    small, large = (
        Run(at_batch(words, size), None if own_batch else size, gpu, ranks) for size in batches
    )
    runs = run_each([small, large._replace(stretch=Stretch(*batches))])
    if not own_batch and not runs[0].loader_batches:
        raise CaptureError(
            "the batch size cannot be varied: the command has no {batch}, and the script makes "
            "no DataLoader with a batch size",
            hint="Put {batch} where it stands: python train.py --batch-size {batch}",
        )
    document = _document(runs, batches, gpu)
    if not own_batch:
        # The training loader is made first.
        document["own_batch"] = runs[0].loader_batches[0]
    return document


#: Bytes.
_IMPORTS_IN = 32 << 20


def _document(
    runs: list[RunResult], batches: tuple[int, int], gpu: str
) -> dict[str, Any]:
    tables = Tables()
    small, large = (run.recorded for run in runs)
    if small.layouts == large.layouts:
        raise CaptureError(
            f"the step is the same at batch {batches[0]} and at batch {batches[1]}",
            hint="Put {batch} where the script takes its batch size from: --batch-size {batch}",
        )
    first = runs[0]
    changing = changing_sizes(steps_of(small), steps_of(large), batches)
    notes = first.notes + changing
    events = tables.rows(merged(small, large, tables, batches, notes.append))
    parts = sum(event[0] == "part" for event in events)
    return {
        "schema": SCHEMA,
        "torch": first.torch,
        "gpu": gpu,
        "model": first.model,
        "batches": list(batches),
        "settings": first.settings,
        "names_root": True,
        "sizes_change": bool(changing),
        "passes": first.passes,
        **({"kept_by": first.keeper._asdict()} if first.keeper else {}),
        "host": _host(runs[0].host, runs[1].host, parts),
        **_epoch(runs[0].epoch, runs[1].epoch),
        **_lost(runs, parts),
        "strings": tables.strings,
        "layouts": tables.layouts,
        "variants": [{"precision": "as_written", "events": events}],
        "notes": notes,
    }


def _lost(runs: list[RunResult], parts: int) -> dict[str, Any]:
    """Where what follows the steps is cut off: it stops there, or the runs differ."""
    seen = [event for event in runs[0].recorded.events if isinstance(event, PartBegin)]
    lost = runs[0].lost_at or runs[1].lost_at
    if parts < len(seen):
        lost = f"its {_IN_WORDS.get(seen[parts].stage, seen[parts].stage)}"
    return {"lost_at": lost} if lost else {}


#: Stages.
_IN_WORDS = {"step": "further training", "save": "saving", "load": "loading"}


def _epoch(small: int | None, large: int | None) -> dict[str, Any]:
    if small is None or large is None:
        return {}
    return {"epoch": small if small == large else [small, large]}


def _host(small: HostPeaks, large: HostPeaks, parts: int) -> dict[str, Any]:
    """Of the parts, as many as are the same in both runs. What was imported is told in steps that
    do not change from run to run."""

    pinned = _merged_pinned(_peaks(small), _peaks(large))

    def both(a: int, b: int) -> Any:
        return a if a == b else [a, b]

    def row(a: HostPeak, b: HostPeak) -> list[Any]:
        more = {
            "pinned": pinned.pop(0) if pinned else [],
            "workers": both(a.workers, b.workers),
            "shared": both(a.shared, b.shared),
            "left": both(a.left, b.left),
        }
        told = {name: value for name, value in more.items() if value}
        return [both(a.bytes, b.bytes), b.where, *([told] if told else [])]

    rows = [row(*pair) for pair in zip(_peaks(small), _peaks(large))]
    return {
        "imports": round(small.imports / _IMPORTS_IN) * _IMPORTS_IN,
        "build": rows[0],
        "steps": rows[1],
        "later": rows[2 : 2 + parts],
    }


def _peaks(host: HostPeaks) -> list[HostPeak]:
    return [host.build, host.steps, *host.later]


def _merged_pinned(small: list[HostPeak], large: list[HostPeak]) -> list[list[Any]]:
    """By part, as far as both runs ask for pinned memory alike."""
    parts: list[list[Any]] = []
    for a, b in zip(small, large):
        events: list[Any] = []
        parts.append(events)
        for first, second in zip(a.pinned, b.pinned):
            if first != second and min(first, second) < 0:
                return parts
            events.append(first if first == second else [first, second])
        if len(a.pinned) != len(b.pinned):
            return parts
    return parts


def run_each(runs: list[Run]) -> list[RunResult]:
    """Beside each other, each in a process of its own: torch takes seconds to load, once."""
    from .process import load_all
    from .watch import STEPS

    load_all()
    with tempfile.TemporaryDirectory() as folder:
        places = [os.path.join(folder, str(number)) for number in range(len(runs))]
        progress = [Progress() for _ in runs]
        functions = [functools.partial(_run, *one) for one in zip(runs, places, progress)]
        codes = run_beside(functions, lambda: said(progress, STEPS))
        return [_found(place, code) for place, code in zip(places, codes)]


def _run(run: Run, place: str, progress: Progress) -> None:
    """In the process of the run. Does not return."""
    output = os.open(place + ".said", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(_environment(run.ranks))
    from .process import run_script

    run_script(place, run, progress)


def _found(place: str, code: int) -> RunResult:
    """What a run has left."""
    with open(place + ".said", errors="replace") as file:
        said = file.read().splitlines()
    try:
        if not os.path.exists(place):
            raise CaptureError(f"the script's process {how_it_ended(code)}")
        return read_outcome(place)
    except CaptureError:
        _show(said)
        raise


def _show(said: list[str]) -> None:
    if said:
        print("plimsoll: the script said last:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in said[-_LAST_LINES:]), file=sys.stderr)


def _environment(ranks: int) -> dict[str, str]:
    """The first rank, and nothing is reported to anyone."""
    first = {"RANK": "0", "LOCAL_RANK": "0"}
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    # The package may have been found by a path that is relative, or beside a program.
    here = str(Path(__file__).resolve().parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **({**first, **size} if ranks else {}),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "WANDB_MODE": "disabled",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _sizes(text: str) -> tuple[int, int]:
    sizes = [whole_number(size) or 0 for size in text.split(",")]
    if len(sizes) != 2 or not 1 <= sizes[0] < sizes[1]:
        raise CaptureError(
            f"the batch sizes are {text}", hint="Give two growing sizes, such as 4,8"
        )
    return sizes[0], sizes[1]


def in_two_lines(error: CaptureError) -> str:
    """As the program reads it, which puts the hint behind a semicolon."""
    what = f"{error.where}: {error.what}" if error.where else error.what
    hint = error.hint or ""
    if hint[1:2].islower() or hint[1:2] == " ":
        hint = hint[0].lower() + hint[1:]
    return "\n".join(" ".join(line.split()) for line in (what, hint)) + "\n"


def _terminated(number: int, frame: object) -> NoReturn:
    """By way of what is to be cleared away."""
    sys.exit(128 + number)


def main(arguments: list[str]) -> int:
    before, command = arguments, []
    if "--" in arguments:
        cut = arguments.index("--")
        before, command = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python -m plimsoll.script", description=__doc__)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--batches", help="two batch sizes, 4,8 unless given")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--complaint", help=argparse.SUPPRESS)
    flags = parser.parse_args(before)
    signal.signal(signal.SIGTERM, _terminated)
    if flags.complaint:  # the program has started this
        end_with_parent(signal.SIGTERM)
    try:
        script_of(command)  # before torch is looked for, in whichever Python this is
        check_output(flags.output, inputs=command)
        from ..world.phantom import require_torch

        require_torch()
        from ..capturing.api import Capture

        own = any(PLACE in word for word in command)
        batches = _sizes(flags.batches) if flags.batches else None
        document = capture_script(command, batches, flags.gpu, own)
        Capture(document).write(flags.output)
    except CaptureError as error:
        if flags.complaint:
            Path(flags.complaint).write_text(in_two_lines(error))
        else:
            print(f"plimsoll: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0

