"""Trains the configurations of plans on the GPU, one at a time, while others get ready."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scripts import HERE, SCRIPTS
from twins import PACKAGE, Configuration, Row, configurations, plain, write_twin

_GIB = 2**30


def wanted(out: Path, names: list[str]) -> Iterator[Configuration]:
    """The most important first; of equal trainings without a limit one."""
    found = []
    for name in names:
        planned = out / f"{name}.json"
        if not planned.exists() or not SCRIPTS[name].edit.exists():
            continue
        of_script = []
        for plan in json.loads(planned.read_text())["plans"]:
            of_script += configurations(SCRIPTS[name], out, plan)
        if of_script:
            found += [*of_script, plain(SCRIPTS[name], of_script[0].limit)]
    yield from (c for c in found if c.role == "first")
    seen = set()
    for c in (c for c in found if c.role in ("below", "above")):
        if c.same_training() not in seen:
            seen.add(c.same_training())
            yield c
    yield from (c for c in found if c.role == "plain")


class Pool:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._end = time.monotonic() + options.within
        self._results = options.results.open("a")
        self._writing = threading.Lock()

    def train(self, of: Configuration) -> str:
        seconds = min(self._options.seconds, self._end - time.monotonic())
        if seconds < 15:
            return f"{of.name}: no time left"
        begun = time.monotonic()
        folder = self._folder / of.name
        folder.mkdir()
        try:
            row = self._trained(of, folder, seconds)
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"}
        told = {"script": of.script.name, "limit": of.limit, "role": of.role}
        told.update(batch=of.batch, passes=of.passes, training=of.same_training())
        row = {**told, **row, "wall": round(time.monotonic() - begun, 1)}
        with self._writing:
            self._results.write(json.dumps(row) + "\n")
            self._results.flush()
        return f"{of.name}: {of.passes} x {of.batch}: {in_words(row)}"

    def _trained(self, of: Configuration, folder: Path, seconds: float) -> Row:
        script = of.script
        path = script.path if of.role == "plain" else write_twin(script, folder)
        job = {
            "limit": int(of.limit * _GIB) if of.role == "first" else 0,
            "steps": self._options.steps,
            "seconds": self._options.on_gpu,
            "lock": str(self._folder / "lock"),
            "out": str(folder / "result.json"),
        }
        (folder / "job.json").write_text(json.dumps(job))
        log = folder / "log"
        words = [*of.arguments(), *script.run, *self._options.tiny.get(script.name, [])]
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "training.py"), "job.json", str(path), *words],
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "8", **of.environment(folder)},
                start_new_session=True,
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            try:
                os.killpg(process.pid, signal.SIGKILL)  # workers of loaders, too
            except ProcessLookupError:
                pass
            process.wait()
        if Path(job["out"]).exists():
            row: Row = json.loads(Path(job["out"]).read_text())
        else:
            row = {"error": f"no end in {seconds:.0f} s" if code is None else f"ended with {code}"}
        if "error" in row:
            row["log"] = log.read_text()[-1500:]
        else:
            applied = [line.strip() for line in log.read_text().splitlines()]
            row["left"] = [line for line in applied if line.startswith("left to you:")]
        return row


def in_words(row: Row) -> str:
    text = f"{row['wall']} s, "
    if "error" in row:
        return text + f"ERROR {row['error'][:200]}"
    return text + (
        f"allocated {row['allocated'] / _GIB:.3f}, reserved {row['reserved'] / _GIB:.3f} GiB, "
        f"{1000 * seconds_of_a_step(row):.1f} ms, loss {row['steps'][0]['loss']:.5f}"
        + (f", {row['retries']} retries" if row.get("retries") else "")
    )


def seconds_of_a_step(row: Row) -> float:
    """The median of the later steps, without the waiting for the loader."""
    later = sorted(step["seconds"] - step["waited"] for step in row["steps"][3:])
    return later[len(later) // 2] if later else float("nan")


def run_all(options: argparse.Namespace) -> int:
    out = options.out.resolve()
    done = set()
    if options.results.exists():
        rows = [json.loads(line) for line in options.results.read_text().splitlines()]
        done = {(r["script"], r["limit"], r["role"]) for r in rows if "error" not in r}
    names = options.names or list(SCRIPTS)
    todo = [c for c in wanted(out, names) if (c.script.name, c.limit, c.role) not in done]
    todo = [c for c in todo if not options.roles or c.role in options.roles.split(",")]
    print(f"{len(todo)} runs, {len(done)} done before; the package is in {PACKAGE}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(options, Path(folder))
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
            asked = [threads.submit(pool.train, c) for c in todo]
            for one in concurrent.futures.as_completed(asked):
                print(one.result(), flush=True)
    return 0
