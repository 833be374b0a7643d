"""`python -m plimsoll.script -o job.step.json.gz -- python train.py --batch-size {batch}`

Runs an unedited training script on fake tensors, once for each of two batch sizes, and writes the
step file that plimsoll.capture would. `plimsoll predict --run` starts this. docs/predict_run.md.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import pickle
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import CaptureError

PLACE = "{batch}"
#: Small, for the host: data sets of examples have few samples.
BATCHES = (4, 8)
_LAST_LINES = 15
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Recorded(NamedTuple):
    """One run of the script, as the merge takes it."""

    events: list[Any]
    layouts: list[Any]


def words_of_script(command: list[str]) -> list[str]:
    """Of "python -u train.py ARGUMENTS": what stands behind Python and the launchers."""
    words = list(command)
    while words:
        name = Path(words[0]).name
        if name.startswith("python"):
            words = _behind_options(words[1:], _PYTHON_VALUES)
        elif name == "torchrun":
            words = _behind_launcher(words[1:])
        elif name == "accelerate" and words[1:2] == ["launch"]:
            words = _behind_launcher(words[2:])
        elif words[:2] == ["-m", "torch.distributed.run"]:
            words = _behind_launcher(words[2:])
        elif words[:2] == ["-m", "accelerate.commands.launch"]:
            words = _behind_launcher(words[2:])
        else:
            return words
    return words


_PYTHON_VALUES = ("-W", "-X")
#: Switches of torchrun and accelerate launch, which take no value.
_SWITCHES = {
    "--standalone", "--no-python", "--run-path", "--multi-gpu", "--cpu", "--quiet", "--use-fsdp",
    "--use-deepspeed", "--debug", "--mps", "--tpu", "--same-network", "--enable-cpu-affinity",
}  # fmt: skip


def _behind_options(words: list[str], with_value: tuple[str, ...]) -> list[str]:
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2:] if words[0] in with_value else words[1:]
    return words


def _behind_launcher(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        if words[0] in ("-m", "--module"):
            return ["-m", *words[1:]]
        alone = "=" in words[0] or words[0].replace("_", "-") in _SWITCHES
        words = words[1:] if alone else words[2:]
    return words


def ranks_of(command: list[str]) -> int:
    """Of the job that torchrun starts, of which the script is to find itself the first; 0 where it
    is started alone. What is left for torchrun to find out ("gpu", "1:4") is taken for 1."""
    if Path(command[0]).name != "torchrun" and "torch.distributed.run" not in command[:4]:
        return 0
    told = dict.fromkeys(("nnodes", "nproc-per-node"), "1")
    flags = command[: len(command) - len(words_of_script(command))]
    for word, following in zip(flags, [*flags[1:], ""]):
        name, equals, value = word.replace("_", "-").lstrip("-").partition("=")
        if word.startswith("--") and name in told:
            told[name] = value if equals else following
    return math.prod(int(value) if value.isdigit() else 1 for value in told.values()) or 1


def at_batch(words: list[str], batch: int) -> list[str]:
    return [word.replace(PLACE, str(batch)) for word in words]


def _script_of(command: list[str]) -> list[str]:
    """Its words; an error where it is none."""
    words = words_of_script(command)
    if not words:
        raise CaptureError(
            "no script stands in the command",
            hint="Give it as you type it: python train.py --batch-size {batch}",
        )
    if words[0] != "-m" and not os.path.isfile(words[0]):
        what = "is not there" if words[0].endswith(".py") else "is no Python script"
        raise CaptureError(
            f"{words[0]} {what}",
            hint="Give the script itself, and variables before plimsoll: python train.py "
            "--batch-size {batch}",
        )
    return words


def capture_script(
    command: list[str], batches: tuple[int, int] | None, gpu: str, own_batch: bool
) -> dict[str, Any]:
    """The step file's document. `own_batch`: {batch} stands in the command."""
    words = _script_of(command)
    ranks = ranks_of(command)
    if batches is None:
        # Of a batch that the script shares out each rank has as much as one alone would.
        shares = max(ranks, 1) if own_batch else 1
        batches = (BATCHES[0] * shares, BATCHES[1] * shares)
    small, large = (
        Run(at_batch(words, size), None if own_batch else size, gpu, ranks) for size in batches
    )
    runs = run_each([small, large._replace(stretch=batches)])
    if not own_batch and not runs[0]["loaders"]:
        raise CaptureError(
            "the batch size cannot be varied: the command has no {batch}, and the script makes "
            "no DataLoader with a batch size",
            hint="Put {batch} where it stands: python train.py --batch-size {batch}",
        )
    return _document(runs, batches, gpu)


def _document(runs: list[dict[str, Any]], batches: tuple[int, int], gpu: str) -> dict[str, Any]:
    from ..capturing.api import SCHEMA
    from ..events.inputs import changing_sizes
    from ..events.merge import Tables, merged

    tables = Tables()
    first, second = (Recorded(run["events"], run["layouts"]) for run in runs)
    if first.layouts == second.layouts:
        raise CaptureError(
            f"the step is the same at batch {batches[0]} and at batch {batches[1]}",
            hint="Put {batch} where the script takes its batch size from: --batch-size {batch}",
        )
    notes = runs[0]["notes"]
    changing = changing_sizes(first, second, batches)
    notes += changing
    events = merged(first, second, tables, batches, notes.append)
    return {
        "schema": SCHEMA,
        "torch": runs[0]["torch"],
        "gpu": gpu,
        "model": runs[0]["model"],
        "batches": list(batches),
        "settings": runs[0]["settings"],
        "names_root": True,
        "sizes_change": bool(changing),
        "passes": runs[0]["passes"],
        "strings": tables.strings,
        "layouts": tables.layouts,
        "variants": [{"precision": "as_written", "events": events}],
        "notes": notes,
    }


class Run(NamedTuple):
    words: list[str]
    #: What every DataLoader is given, or nothing where the script has it from the command.
    loader_batch: int | None
    gpu: str
    #: With the variables that torchrun sets, for so many.
    ranks: int = 0
    #: Of the larger one: both batch sizes.
    stretch: tuple[int, int] | None = None


def run_each(runs: list[Run]) -> list[dict[str, Any]]:
    """Beside each other, each in a process of its own: torch takes seconds to load, once."""
    from .process import load_all

    load_all()
    with tempfile.TemporaryDirectory() as folder:
        places = [os.path.join(folder, str(number)) for number in range(len(runs))]
        children = [_fork(run, place) for run, place in zip(runs, places)]
        try:
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        finally:
            for child in children:
                _end_group(child)
        return [_found(place, code) for place, code in zip(places, codes)]


def _fork(run: Run, place: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)  # with all that it starts
        _end_with_parent()
        said = os.open(place + ".said", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ.update(_environment(run.ranks))
        from .process import run_script

        run_script(place, run.words, run.loader_batch, run.gpu, run.stretch)
    finally:
        os._exit(1)  # never back into what has called


def _end_group(leader: int) -> None:
    """A process and what it has started, a server for its curves, say."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _end_with_parent() -> None:
    """A script that never ends, or catches Ctrl-C, is not left behind."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _found(place: str, code: int) -> dict[str, Any]:
    """What a run has left."""
    with open(place + ".said", errors="replace") as file:
        said = file.read().splitlines()
    if not os.path.exists(place):
        _show(said)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise CaptureError(f"the script's process {how}")
    with open(place, "rb") as file:
        found: dict[str, Any] = pickle.load(file)  # written by our own process a moment ago
    if "error" in found:
        _show(said)
        raise CaptureError(**found["error"])
    return found


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
    sizes = [int(size) for size in text.split(",") if size.isdigit()]
    if len(sizes) != 2 or not 1 <= sizes[0] < sizes[1]:
        raise CaptureError(
            f"the batch sizes are {text}", hint="Give two growing sizes, such as 4,8"
        )
    return sizes[0], sizes[1]


def _in_two_lines(error: CaptureError) -> str:
    """As the program reads it, which puts the hint behind a semicolon."""
    what = f"{error.where}: {error.what}" if error.where else error.what
    hint = error.hint or ""
    if hint[1:2].islower() or hint[1:2] == " ":
        hint = hint[0].lower() + hint[1:]
    return "\n".join(" ".join(line.split()) for line in (what, hint)) + "\n"


def _check_writable(output: Path) -> None:
    """Before the work."""
    folder = output.absolute().parent
    if output.is_dir() or not os.access(output if output.exists() else folder, os.W_OK):
        raise CaptureError(
            f"{output} cannot be written", hint="Name a file in a folder that is there"
        )


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
    try:
        _check_writable(Path(flags.output))
        _script_of(command)  # before torch is looked for, in whichever Python this is
        from ..world.phantom import require_torch

        require_torch()
        from ..capturing.api import Capture

        own = any(PLACE in word for word in command)
        batches = _sizes(flags.batches) if flags.batches else None
        document = capture_script(command, batches, flags.gpu, own)
        Capture(document).write(flags.output)
    except CaptureError as error:
        if flags.complaint:
            Path(flags.complaint).write_text(_in_two_lines(error))
        else:
            print(f"plimsoll: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0

