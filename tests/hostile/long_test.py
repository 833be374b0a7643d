#!/usr/bin/env python3
"""No file under 10 MB takes more than 10 s or 1 GB, however long what is in it: tests/hostile/long_test.py PROGRAM

Steps, snapshots, tables and logs are drawn at random (long_inputs.py), each with a command that searches. Time is the
processor's, since other programs take theirs; what is allowed of it is told by PLIMSOLL_LONG_SECONDS, as a build for tests
is several times slower, and plan works in two threads. PLIMSOLL_LONG_CASES=300 is what `make nightly` draws, PLIMSOLL_LONG_JOBS of them at a time.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import long_inputs

CASES = int(os.environ.get("PLIMSOLL_LONG_CASES", "4"))
JOBS = int(os.environ.get("PLIMSOLL_LONG_JOBS", "1"))
SECONDS = float(os.environ.get("PLIMSOLL_LONG_SECONDS", "40"))
MOST_KIB = 1_000_000
#: The few by day are shorter.
MOST_BYTES = long_inputs.MOST_BYTES // (1 if CASES > 4 else 3)
#: Only against hanging.
WALL_SECONDS = 1200


def step_command(draw: random.Random, file: str, page: str) -> list[str]:
    gpu = ["--gpu", draw.choice(["1GiB", "8GiB", "4090", "H200"])]
    batch = str(2 ** draw.randint(0, 12))
    return draw.choice(
        [
            ["predict", file, "--max-batch", *gpu],
            ["predict", file, "--batch", batch, *gpu, "--html", page],
            ["plan", file, *gpu],
            ["plan", file, *gpu, "--global-batch", batch],
            ["plan", file, *gpu, "--gpus", "8"],
        ]
    )


def snapshot_command(draw: random.Random, file: str, page: str) -> list[str]:
    return draw.choice(
        [
            ["replay", file],
            ["replay", file, "--set", "expandable_segments:True"],
            ["pack", file, "--seconds", "2"],
            ["explain", file],
            ["report", file, "-o", page],
        ]
    )


def table_command(draw: random.Random, file: str, page: str) -> list[str]:
    capacity = draw.choice([[], ["--capacity", str(2 ** draw.randint(25, 40))]])
    return ["pack", file, "--seconds", "2", *capacity]


def log_command(draw: random.Random, file: str, page: str) -> list[str]:
    return draw.choice([["explain", file], ["explain", "--json", file], ["report", file, "-o", page]])


KINDS = [
    ("step.json", long_inputs.long_step, step_command),
    ("pickle", long_inputs.long_snapshot, snapshot_command),
    ("csv", long_inputs.long_table, table_command),
    ("log", long_inputs.long_log, log_command),
]


def run(command: list[str]) -> tuple[int, float, int, str]:
    """The exit code, seconds of the processor, KiB of memory at most, and the complaint."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    hangs = threading.Timer(WALL_SECONDS, child.kill)
    hangs.start()
    complaint = child.stderr.read() if child.stderr else ""
    _, status, usage = os.wait4(child.pid, 0)
    hangs.cancel()
    code = os.waitstatus_to_exitcode(status)
    return code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, complaint


def try_case(program: str, folder: Path, case: int) -> bool:
    ending, _, choose = KINDS[case % len(KINDS)]
    file = folder / f"long{case}.{ending}"
    page = folder / f"page{case}.html"
    # In a process of its own: a child is counted with the memory that its parent has.
    subprocess.run([sys.executable, __file__, "--make", str(case), str(file)], check=True)
    arguments = choose(random.Random(-1 - case), str(file), str(page))
    code, seconds, kib, complaint = run([program, *arguments])
    # A packing that may not fit, a plan without a way: 1 is an answer, too.
    good = code in (0, 1) and seconds <= SECONDS and kib <= MOST_KIB
    told = " ".join(a for a in arguments if not a.startswith(str(folder)))
    print(
        f"{'ok' if good else 'FAILED'} {case:3d}  {seconds:5.1f} s  {kib / 1024:5.0f} MiB  exit {code}  "
        f"{file.stat().st_size / 1e6:5.2f} MB {ending}  {told}"
        + (f"  {complaint.strip()[:200]}" if code not in (0, 1) else ""),
        flush=True,
    )
    file.unlink()
    page.unlink(missing_ok=True)
    return good


def main(program: str, folder: Path) -> int:
    with ThreadPoolExecutor(JOBS) as pool:
        good = list(pool.map(lambda case: try_case(program, folder, case), range(CASES)))
    return 0 if all(good) else 1


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--make":
        case = int(sys.argv[2])
        Path(sys.argv[3]).write_bytes(KINDS[case % len(KINDS)][1](random.Random(case), MOST_BYTES))
        sys.exit(0)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(sys.argv[1], Path(made)))
