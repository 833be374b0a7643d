#!/usr/bin/env python3
"""No file under 10 MB takes more than 10 s or 1 GB, with any command and any flags: tests/hostile/long_test.py PROGRAM

Steps, snapshots, tables and logs are drawn at random (long_inputs.py). Each is given to every command that reads
files, with five drawn sets of flags (FLAGS). Time is the processor's, since other programs take theirs; two threads
of `plan` count twice. The program has to answer (exit code 0, 1 or 3) or refuse in one line (2).

PLIMSOLL_LONG_CASES: how many inputs (300 by night, 4 by day: then one command and one set of flags for each).
PLIMSOLL_LONG_SECONDS: seconds allowed, since a build for tests is several times slower than a release.
PLIMSOLL_LONG_JOBS: how many at a time. PLIMSOLL_LONG_SHARD=2/10: every tenth input from the third on.
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
SHARD, SHARDS = (int(n) for n in os.environ.get("PLIMSOLL_LONG_SHARD", "0/1").split("/"))
BY_NIGHT = CASES > 4
MOST_KIB = 1_000_000
#: The few by day are shorter.
MOST_BYTES = long_inputs.MOST_BYTES // (1 if BY_NIGHT else 3)
#: Only against hanging.
WALL_SECONDS = 1200
PLAN_SECONDS = 5

KINDS = [
    ("step.json", long_inputs.long_step),
    ("pickle", long_inputs.long_snapshot),
    ("csv", long_inputs.long_table),
    ("log", long_inputs.long_log),
]

GPUS = ["1GiB", "8GiB", "24GB", "4090", "H200"]
CONF = ["expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:64"]
#: By command, the flags that are drawn and their values; None: the flag has no value.
FLAGS: dict[str, dict[str, list[str | None]]] = {
    "explain": {
        "--json": [None], "--group": ["(.*)*x", "rank(\\d+)", "a|b|(c+)+"], "--capacity": ["1GiB", "80GB"], "--at": ["1", "500"],
    },
    "diff": {"--json": [None], "--markdown": [None], "--fail-above": ["1MiB"]},
    "report": {"--redact": [None], "--at": ["1", "500"]},
    "replay": {"--set": CONF, "--limit": ["1GiB"], "--json": [None], "--gpu": GPUS, "--verify": [None]},
    "tune": {"--gpu": GPUS, "--limit": ["2GiB"], "--json": [None]},
    "pack": {"--seconds": ["2"], "--capacity": ["64MiB", "1TiB"], "--json": [None], "--csv": [None]},
    "predict": {
        "--gpu": [*GPUS, "any"], "--batch": ["1", "8", "4096"], "--max-batch": [None], "--json": [None], "--html": ["PAGE"],
        "--snapshot": ["PAGE"], "--accumulate": ["2", "64"], "--checkpoint": ["all", "sqrt", "every:2"], "--alloc-conf": CONF,
        "--mesh": ["pipeline=8:8", "fsdp=8", "tensor=4"], "--fsdp": ["8"], "--limit": ["2GiB"], "--precision": ["amp_bf16"],
        "--optimizer": ["sgd", "adam8bit"], "--max-length": [None], "--steps": ["20"], "--events": [None],
    },
    "plan": {
        "--gpu": GPUS, "--gpus": ["8"], "--nodes": ["2"], "--global-batch": ["8", "4096"], "--keep-numerics": [None],
        "--explain": [None], "--json": [None], "--html": ["PAGE"], "--budget": ["1GiB", "20GiB"],
    },
    "data": {"--gpu": GPUS, "--batch": ["8"], "--json": [None]},
}  # fmt: skip

#: What answers of each kind, for the few by day; by night the others have to refuse it.
READERS = [["predict", "plan", "data"], ["explain", "report", "replay", "pack", "diff"], ["pack"], ["explain", "report", "diff"]]


def drawn_flags(draw: random.Random, command: str, page: str) -> list[str]:
    flags = FLAGS[command]
    words = []
    for flag in draw.sample(sorted(flags), draw.randint(0, min(3, len(flags)))):
        value = draw.choice(flags[flag])
        words += [flag] if value is None else [flag, page if value == "PAGE" else value]
    return words


def command_line(draw: random.Random, command: str, file: str, page: str) -> list[str]:
    words = [command, file, *drawn_flags(draw, command, page)]
    if command == "diff":
        words.insert(2, file)
    if command == "report":
        words += ["-o", page]
    if command == "pack" and "--seconds" not in words:
        words += ["--seconds", "2"]
    if command == "plan":
        words += ["--seconds", str(PLAN_SECONDS)]
        if "--gpu" not in words and "--budget" not in words:
            words += ["--gpu", draw.choice(GPUS)]
    return words


def seconds_allowed(command: str) -> float:
    return SECONDS + (2 * (PLAN_SECONDS + 2) if command == "plan" else 0)


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


def try_command(program: str, case: int, command: list[str], size: int, folder: Path) -> bool:
    code, seconds, kib, complaint = run([program, *command])
    allowed = seconds_allowed(command[0])
    answered = code in (0, 1, 3) or (code == 2 and complaint.count("\n") == 1)
    good = answered and seconds <= allowed and kib <= MOST_KIB
    words = " ".join(word for word in command if not word.startswith(str(folder)))
    if not good or not BY_NIGHT:
        print(
            f"{'ok' if good else 'FAILED'} {case:3d}  {seconds:5.1f} s of {allowed:.0f}  {kib / 1024:5.0f} MiB  exit {code}  "
            f"{size / 1e6:5.2f} MB {KINDS[case % len(KINDS)][0]}  {words}"
            + ("" if answered else f"  {complaint.strip()[:200]}"),
            flush=True,
        )
    return good


def try_case(program: str, folder: Path, case: int) -> tuple[int, int]:
    """How many commands were tried on one input, and how many of them failed."""
    file = folder / f"long{case}.{KINDS[case % len(KINDS)][0]}"
    page = folder / f"page{case}.html"
    # In a process of its own: a child is counted with the memory that its parent has.
    subprocess.run([sys.executable, __file__, "--make", str(case), str(file)], check=True)
    draw = random.Random(-1 - case)
    commands = sorted(FLAGS) * 5 if BY_NIGHT else [draw.choice(READERS[case % len(KINDS)])]
    lines = [command_line(draw, command, str(file), str(page)) for command in commands]
    good = [try_command(program, case, line, file.stat().st_size, folder) for line in lines]
    file.unlink()
    page.unlink(missing_ok=True)
    return len(good), good.count(False)


def main(program: str, folder: Path) -> int:
    with ThreadPoolExecutor(JOBS) as pool:
        tried = list(pool.map(lambda case: try_case(program, folder, case), range(SHARD, CASES, SHARDS)))
    commands, failed = (sum(column) for column in zip(*tried))
    print(f"{commands} commands on {len(tried)} inputs, {failed} failed")
    return 0 if failed == 0 else 1


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
