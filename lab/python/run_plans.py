"""Plans, held against runs on the GPU. Four steps, each a command:

    run_plans.py capture CAPTURES               each job of plan_jobs.py; no GPU
    run_plans.py plan PROGRAM CAPTURES PLANS    what `plimsoll plan` says of each job and budget
    run_plans.py run PLANS RESULTS.jsonl        each plan's first ways, and levers alone, trained
    run_plans.py table PLANS RESULTS.jsonl      predicted against measured

Plans are written before anything is run. `run` trains each way in a process of its own, forked from
one that has built the model and not touched the GPU: a clean allocator, clean peaks, and no import
to wait for. A line is written as soon as a way has run; what fails is a line as well. A way that is
in the plans of two budgets is run under the smaller one, and again only where that was too small
for it or made the allocator try again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_GIB = 2**30
_WARM_UP, _TIMED = 3, 5
#: Steps longer than this need one less to warm up, and are timed twice.
_LONG_MS = 1000.0
#: Of the levers alone, those that are not the fastest are run if they come this close to the plan.
_NEAR = 4.0


def jobs_of(options: argparse.Namespace) -> dict[str, Any]:
    from plan_jobs import (
        HOSTED_JOBS,
        JOBS,
        LATER_JOBS,
        NEWEST_JOBS,
        TINY_JOBS,
        UNTIMED_JOBS,
    )

    every = {**JOBS, **LATER_JOBS, **NEWEST_JOBS, **UNTIMED_JOBS, **HOSTED_JOBS}
    found = TINY_JOBS if options.tiny else every
    return {name: job for name, job in found.items() if options.only in name}


# Without a GPU: captures and plans.


def capture_all(options: argparse.Namespace) -> int:
    import plimsoll

    options.captures.mkdir(parents=True, exist_ok=True)
    index = {}
    for name, job in jobs_of(options).items():
        index[name] = {"samples": job.samples, "budgets": job.budgets}
        start = time.perf_counter()
        made = plimsoll.capture(
            job.build,
            job.optimizer,
            lambda n, job=job: job.batch(n, "cuda"),
            job.loss,
            gpu=options.gpu,
            precisions="plan",
            path=options.captures / f"{name}.step.json.gz",
        )
        seconds = time.perf_counter() - start
        print(f"{name:20s} {seconds:4.0f} s {made.variants} {made.notes}", flush=True)
    target = options.captures / "index.json"
    known = json.loads(target.read_text()) if target.exists() else {}
    target.write_text(json.dumps({**known, **index}, indent=1))
    return 0


def plan_all(options: argparse.Namespace) -> int:
    options.plans.mkdir(parents=True, exist_ok=True)
    index = json.loads((options.captures / "index.json").read_text())
    for name, entry in index.items():
        if options.only not in name:
            continue
        for budget in entry["budgets"]:
            command = [options.program, "plan", str(options.captures / f"{name}.step.json.gz")]
            command += ["--gpu", options.gpu, "--budget", f"{budget}GiB", "--torch", options.torch]
            command += ["--global-batch", str(entry["samples"]), "--json", *options.more]
            start = time.perf_counter()
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds = time.perf_counter() - start
            if run.returncode not in (0, 1):
                print(f"{name} {budget} GiB: {run.stderr.strip()}", file=sys.stderr)
                continue
            (options.plans / f"{name}@{budget}.json").write_text(run.stdout)
            print(f"{name:20s} {budget:4g} GiB  {seconds:5.1f} s")
            for kind, _, way in ways_of(json.loads(run.stdout), options):
                print(f"    {kind:5s} {way['step_us'] / 1e3:8.1f} ms  {told(way)}")
    return 0


def ways_of(plan: dict[str, Any], options: argparse.Namespace) -> Iterator[tuple[str, int, Any]]:
    """(kind, number, way): the first ways, and the fastest of those with one lever."""
    ways = [way for way in plan.get("ways", []) if way.get("surely_fits", True)]
    for number, way in enumerate(ways[: options.ways]):
        yield "way", number, way
    alone = [way for way in plan.get("alone", []) if way.get("surely_fits", True)]
    limit = _NEAR * ways[0]["step_us"] if ways else 0
    for number, way in enumerate(sorted(alone, key=lambda w: w["step_us"])[: options.alone]):
        if number == 0 or way["step_us"] < limit:
            yield "alone", number, way


def told(way: dict[str, Any]) -> str:
    def short(value: str) -> str:
        return f"{value.count(',') + 1} blocks" if value.count(",") > 1 else value

    levers = ", ".join(f"{lever}={short(value)}" for lever, value in way["set"].items())
    return f"{way['passes']} x {way['batch']}  {levers or 'as it is'}"


def plans_in(folder: Path) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """(job, budget, plan), small budgets before large ones."""
    found = []
    for path in folder.glob("*@*.json"):
        job, _, budget = path.name.removesuffix(".json").rpartition("@")
        found.append((job, float(budget), json.loads(path.read_text())))
    yield from sorted(found, key=lambda entry: entry[:2])


# On the GPU.


def run_all(options: argparse.Namespace) -> int:
    import torch

    begin = time.monotonic()
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    jobs = jobs_of(options)
    built: dict[str, Any] = {}
    finished: dict[str, dict[str, Any]] = {}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for name, budget, plan in plans_in(options.plans):
        if name not in jobs:
            continue
        if name not in built:
            built.clear()  # one model in memory
            built[name] = jobs[name].build().train()
        for kind, number, way in ways_of(plan, options):
            row = {"job": name, "budget": budget, "kind": kind, "number": number}
            row["way"] = {key: way[key] for key in ("batch", "passes", "set", "levers")}
            same = json.dumps([name, row["way"]], sort_keys=True)
            left = options.seconds - (time.monotonic() - begin)
            if same in finished:
                row.update(finished[same])
            elif left < 5:
                row["error"] = "not run: no time left"
            else:
                row.update(_in_a_fork(options, jobs[name], built[name], way, budget, left))
                if row.get("trained") and not row.get("retries"):
                    finished[same] = {k: v for k, v in row.items() if k not in _PLACE} | {
                        "measured_at": budget
                    }
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(_line(row), flush=True)
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


_PLACE = ("job", "budget", "kind", "number", "way")


def _line(row: dict[str, Any]) -> str:
    head = f"{row['job']:16s} {row['budget']:4g} GiB {row['kind']:5s} {row['number']} "
    if not row.get("trained"):
        return head + str(row.get("error", "did not train")).splitlines()[0][:150]
    again = " (as before)" if "measured_at" in row else ""
    return (
        f"{head}{row['step_ms']:8.1f} ms  reserved {row['peak_reserved'] / _GIB:6.2f} GiB  "
        f"{row['seconds']:4.1f} s  {told(row['way'])}{again}"
    )


def _in_a_fork(
    options: argparse.Namespace, job: Any, model: Any, way: Any, budget: float, left: float
) -> dict[str, Any]:
    """The child writes one line into a pipe; whatever becomes of it, the parent goes on."""
    reading, writing = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = train(options, job, model, way, budget)
        except BaseException as error:  # the child must not come back into the parent's loop
            trace = traceback.format_exc().splitlines()[-6:]
            answer = {"error": f"{type(error).__name__}: {error}"[:2000], "trace": trace}
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(answer))
        os._exit(0)
    os.close(writing)
    limit = min(options.way_seconds, left)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, limit)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.monotonic() - start
    if not text:
        return {"error": f"ended without a result after {seconds:.0f} s", "seconds": seconds}
    return {**json.loads(text), "seconds": seconds}


def train(
    options: argparse.Namespace, job: Any, model: Any, way: Any, budget: float
) -> dict[str, Any]:
    import torch

    import plimsoll

    gpu = options.device == "cuda"
    torch.manual_seed(0)
    applied = plimsoll.apply(
        {"schema": "plimsoll.plan/1"}, model, job.optimizer(model.parameters()), way=way
    )
    # A learning rate to choose does not change what a step takes.
    missing = [t for t in applied.not_set if not t.startswith("the learning rate")]
    if missing:
        return {"error": f"not run: {missing[0]}"}
    total = 0
    if gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(budget * _GIB / total)
    if applied.precision.channels_last:
        # As a capture has it: moved to the GPU first, which leaves gaps.
        model.to(memory_format=torch.contiguous_format)
        model.to(options.device)
        model.to(memory_format=torch.channels_last)
    model.to(options.device)

    def batches() -> Iterator[Any]:
        while True:
            yield job.batch(applied.batch, options.device)

    row: dict[str, Any] = {"torch": str(torch.__version__)}
    stream, times, used, value = batches(), [], 0, math.nan
    try:
        while not timed_part(times, complete=True):
            start = time.perf_counter()
            loss = applied.step(stream, job.loss)
            if gpu:
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
            value = float(loss)
            if gpu:
                used = max(used, total - torch.cuda.mem_get_info()[0])
        row["trained"] = True
        row["step_ms"] = statistics.median(timed_part(times))
    except torch.cuda.OutOfMemoryError as error:
        row["trained"] = False
        row["error"] = str(error)
    row.update(times=times, loss=value if math.isfinite(value) else None, device_used=used)
    stats = torch.cuda.memory_stats() if gpu else {}
    row["peak_reserved"] = stats.get("reserved_bytes.all.peak", 0)
    row["peak_allocated"] = stats.get("allocated_bytes.all.peak", 0)
    row["retries"] = stats.get("num_alloc_retries", 0)
    return row


def timed_part(times: list[float], complete: bool = False) -> list[float]:
    """Of the steps so far, those that count; with `complete` none until there are enough."""
    is_long = len(times) > 1 and times[1] > _LONG_MS
    timed = times[_WARM_UP - is_long :]
    return [] if complete and len(timed) < (2 if is_long else _TIMED) else timed


# Predicted against measured.


def table(options: argparse.Namespace) -> int:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in options.results.read_text().splitlines():
        row = json.loads(line)
        rows[row["job"], row["budget"], row["kind"], row["number"]] = row
    counts = _Counts()
    for name, budget, plan in plans_in(options.plans):
        entries = [
            (kind, number, way, rows.get((name, budget, kind, number)))
            for kind, number, way in ways_of(plan, options)
        ]
        if not any(row for *_, row in entries):
            continue
        print(f"\n{name}, {budget:g} GiB, {plan.get('samples', '?')} samples a step")
        for kind, number, way, row in entries:
            print(f"  {kind:5s} {number}  {counts.judge(way, row)}  {told(way)}")
        counts.judge_order(entries)
    counts.show()
    return 0


class _Counts:
    def __init__(self) -> None:
        self._told: dict[str, list[bool]] = {}
        self._errors: list[float] = []
        self._memory: list[float] = []

    def _count(self, question: str, answer: bool) -> str:
        self._told.setdefault(question, []).append(answer)
        return "" if answer else f"  NOT {question.upper()}"

    def judge(self, way: dict[str, Any], row: dict[str, Any] | None) -> str:
        if row is None or str(row.get("error", "")).startswith("not run"):
            return f"{'not run' if row is None else row['error'][:72]:72s}"
        told = self._count("trained within the budget", bool(row.get("trained")))
        if not row.get("trained"):
            return f"{str(row.get('error')).splitlines()[0][:60]:60s}{told}"
        low, best, high = (way["reserved"][key] / _GIB for key in ("low", "best", "high"))
        reserved, ms = row["peak_reserved"] / _GIB, way["step_us"] / 1e3
        told += self._count("peak within its range", low <= reserved <= high)
        off = ms / row["step_ms"] - 1
        self._errors.append(abs(off))
        if reserved > 0:
            self._memory.append(abs(best / reserved - 1))
        return (
            f"reserved {best:6.2f} [{low:6.2f}, {high:6.2f}], measured {reserved:6.2f} GiB  "
            f"step {ms:8.1f}, measured {row['step_ms']:8.1f} ms ({100 * off:+5.1f} %){told}"
        )

    def judge_order(self, entries: list[tuple[Any, ...]]) -> None:
        measured: dict[str, list[float]] = {"way": [], "alone": []}
        complete = True
        for kind, _, _, row in entries:
            if row is not None and row.get("trained"):
                measured[kind].append(row["step_ms"])
            elif kind == "way":
                complete = False
        ways = measured["way"]
        if complete and len(ways) > 1:
            pairs = list(zip(ways, ways[1:]))
            # Steps that differ by less than 2 % are not told apart by five of them.
            told = self._count("order of the ways", all(a <= 1.02 * b for a, b in pairs))
            first = self._count("first way is the fastest", ways[0] <= 1.02 * min(ways))
            times = ", ".join(f"{ms:.1f}" for ms in ways)
            print(f"  measured, in the order of the plan: {times} ms{told}{first}")
        if ways and measured["alone"]:
            best = min(measured["alone"])
            told = self._count("faster than the best single lever", ways[0] <= 1.02 * best)
            print(f"  {best / ways[0]:.2f} times as fast as the best lever alone{told}")

    def show(self) -> None:
        print()
        for question, answers in self._told.items():
            print(f"{question}: {sum(answers)} of {len(answers)}")
        for what, errors in (("step time", self._errors), ("reserved memory", self._memory)):
            if errors:
                print(
                    f"error of the {what}: median {100 * statistics.median(errors):.1f} %, "
                    f"worst {100 * max(errors):.1f} %, {len(errors)} runs"
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--only", default="", help="jobs whose name contains this")
    common.add_argument("--tiny", action="store_true", help="two tiny jobs instead")
    common.add_argument("--gpu", default="H200")
    common.add_argument("--ways", type=int, default=3, help="of each plan, so many of the first")
    common.add_argument("--alone", type=int, default=6, help="and so many with one lever")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("capture", parents=[common])
    command.add_argument("captures", type=Path)
    command.set_defaults(call=capture_all)
    command = commands.add_parser("plan", parents=[common])
    command.add_argument("program")
    command.add_argument("captures", type=Path)
    command.add_argument("plans", type=Path)
    command.add_argument("--torch", default="2.11", help="the release that will train")
    command.add_argument("--more", nargs="*", default=[], help="further flags of the program")
    command.set_defaults(call=plan_all)
    command = commands.add_parser("run", parents=[common])
    command.add_argument("plans", type=Path)
    command.add_argument("results", type=Path)
    command.add_argument("--device", default="cuda")
    command.add_argument("--seconds", type=float, default=540, help="for all of it")
    command.add_argument("--way-seconds", type=float, default=60, help="for one way")
    command.set_defaults(call=run_all)
    command = commands.add_parser("table", parents=[common])
    command.add_argument("plans", type=Path)
    command.add_argument("results", type=Path)
    command.set_defaults(call=table)
    options = parser.parse_args()
    result: int = options.call(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
