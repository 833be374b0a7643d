#!/usr/bin/env python3
"""What `plimsoll plan` says of nineteen unedited scripts, held against `predict` and a GPU.

    drive.py plan PROGRAM OUT [NAME…]      captures, plans, and the same asked of `predict`; no GPU
    drive.py edited PROGRAM OUT [NAME…]    captures each script edited as the plan tells; no GPU
    drive.py run OUT RESULTS [NAME…]       trains the first way of each plan and its neighbours
    drive.py table OUT RESULTS             what was found, as markdown

`plan` writes to OUT, per script: NAME.step.json.gz, NAME@LIMIT.json (the plan) and NAME.json (what
was found). A script whose NAME.json is there is not asked again unless --again is given. `edited`
writes NAME@LIMIT.edited.json, `run` lines of JSON to RESULTS.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from running import run_all
from scripts import SCRIPTS, Script
from table import table
from twins import Configuration, configurations, write_twin

_GIB = 2**30
GPU = "H200"
#: Shares of what the script reserves as it is.
SHARES = (0.75, 0.45)

Row = dict[str, Any]


class Program:
    def __init__(self, path: str, seconds: float, end: float) -> None:
        self._path = str(Path(path).resolve())
        self._seconds, self._end = seconds, end

    def ask(self, *words: str, where: Path | None = None, **variables: str) -> Row:
        """The JSON of an answer; or "error", with the exit code."""
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
        begun = time.monotonic()
        seconds = min(self._seconds, self._end - begun)
        if seconds < 1:
            return {"error": "not asked: no time left", "asked": " ".join(words)}
        asked = subprocess.Popen(
            [self._path, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=where,
            env=environment,
            start_new_session=True,
        )
        try:
            out, err = asked.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(asked.pid, signal.SIGKILL)
            asked.communicate()
            return {"error": f"no answer after {seconds:.0f} s", "asked": " ".join(words)}
        seconds = round(time.monotonic() - begun, 1)
        try:
            answer: Row = json.loads(out)
        except ValueError:
            text = (err or out).strip()[-1500:]
            return {"error": text, "code": asked.returncode, "asked": " ".join(words)}
        return {**answer, "code": asked.returncode, "seconds": seconds}


def sets(way: Row) -> list[str]:
    return [word for lever, value in way["set"].items() for word in ("--set", f"{lever}={value}")]


def limit_word(limit: float) -> str:
    return f"{limit:.2f}GiB"


class OneScript:
    """All that is asked without a GPU about one script."""

    def __init__(self, program: Program, script: Script, out: Path) -> None:
        self._program, self._script, self._out = program, script, out
        self._step = out / f"{script.name}.step.json.gz"
        self._row: Row = {"script": script.name, "samples": script.samples, "plans": []}

    def ask_all(self) -> Row:
        begun = time.monotonic()
        captured = self._capture()
        if "error" in captured:
            self._row["error"] = captured["error"]
            return self._row
        self._row["captured"] = {"seconds": captured["seconds"], "samples": captured.get("samples")}
        stock = self._predict(self._script.batch)
        self._row["stock"] = kept(stock)
        if "error" in stock:
            return self._row
        for share in SHARES:
            limit = max(0.25, round(4 * share * stock["reserved"] / _GIB) / 4)
            self._row["plans"].append(self._plan(limit))
        self._row["seconds"] = round(time.monotonic() - begun, 1)
        return self._row

    def command(self, script: Path, *more: str) -> list[str]:
        return ["--", "python", str(script), *more, self._script.flag, "{batch}"]

    def _capture(self) -> Row:
        """`plan --run` at no limit: its capture has what `predict --run` leaves out."""
        batches = ["--batches", self._script.batches] if self._script.batches else []
        with tempfile.TemporaryDirectory() as folder:
            return self._program.ask(
                *("plan", "--run", "--json", "--gpu", GPU, "--keep-step", str(self._step)),
                *("--global-batch", str(self._script.samples), *batches),
                *self.command(self._script.path),
                where=Path(folder),
            )

    def _predict(self, batch: int, *more: str) -> Row:
        return self._program.ask(
            "predict", str(self._step), "--gpu", GPU, "--batch", str(batch), "--json", *more
        )

    def _plan(self, limit: float) -> Row:
        answer = self._program.ask(
            *("plan", str(self._step), "--gpu", GPU, "--budget", limit_word(limit), "--json"),
            *("--global-batch", str(self._script.samples)),
        )
        plan: Row = {"limit": limit, "seconds": answer.get("seconds"), "code": answer.get("code")}
        if "error" in answer:
            return {**plan, "error": answer["error"]}
        name = f"{self._script.name}@{limit:.2f}.json"
        (self._out / name).write_text(json.dumps(answer))
        plan.update(
            {key: answer.get(key) for key in ("verdict", "unknown", "growth", "evaluations")}
        )
        plan["file"] = name
        plan["out_of_time"] = answer.get("out_of_time")
        plan["left_out"] = answer.get("left_out")
        plan["ways"] = [self._compare(way, limit) for way in answer["ways"]]
        kinds = ("alone", "frontier")
        plan["others"] = [self._compare(way, limit) for kind in kinds for way in answer[kind]]
        if answer.get("as_captured"):
            plan["others"].append(self._compare(answer["as_captured"], limit))
        if answer.get("closest"):
            plan["others"].append(self._compare(answer["closest"], limit))
        if answer["verdict"] != "fits" or not answer["ways"]:
            passes = min(self._script.samples, 8)  # more take no more memory
            smallest = self._predict(
                1, "--limit", limit_word(limit), "--set", f"accumulation={passes}"
            )
            plan["one_sample"] = kept(smallest)
        return plan

    def _compare(self, way: Row, limit: float) -> Row:
        """The same configuration, asked of `predict`."""
        answer = self._predict(way["batch"], "--limit", limit_word(limit), *sets(way))
        row: Row = {"batch": way["batch"], "passes": way["passes"], "set": way["set"]}
        row["numerics"] = way["numerics"]
        row["step_us"] = way["step_us"]
        row["surely_fits"] = way["surely_fits"]
        row["reserved"], row["device"] = way["reserved"], way["device"]
        if "error" in answer:
            return {**row, "differs": [answer["error"]]}
        row["allocated"] = answer["ranges"]["allocated"]
        row["training"] = of_training(answer)
        pairs = {
            "reserved": shared(way["reserved"], answer["ranges"]["reserved"]),
            "device": shared(way["device"], answer["ranges"]["device"]),
            "passes": (way["passes"], answer["passes"]),
            "batch": (way["batch"], answer["batch"]),
            "step_us": (way["step_us"], answer["step_us"]),
            "growth": (way["growth"], answer["growth"]),
            "fits": (way["fits"], answer["fits"]),
            "surely_fits": (way["surely_fits"], answer["surely_fits"]),
        }
        row["growth"] = way["growth"] or answer["growth"]
        row["differs"] = [
            f"{what}: plan {a}, predict {b}" for what, (a, b) in pairs.items() if a != b
        ]
        return row


def shared(planned: Row, predicted: Row) -> tuple[Row, Row]:
    """The figures that both have: those of the frontier are without a range."""
    keys = [key for key, value in planned.items() if value is not None]
    return {key: planned[key] for key in keys}, {key: predicted[key] for key in keys}


def kept(answer: Row) -> Row:
    if "error" in answer:
        return answer
    keys = ("batch", "passes", "verdict", "unknown", "fits", "surely_fits", "growth", "step_us")
    row = {key: answer.get(key) for key in keys}
    return {**row, **answer["ranges"], "training": of_training(answer)}


def of_training(answer: Row) -> Row:
    """Without the evaluations: they come of another loader than the edit is about."""
    for stage in answer.get("stages") or []:
        if stage["stage"] == "step":
            return {key: stage[key] for key in ("allocated", "reserved")}
    return {key: answer["ranges"][key]["best"] for key in ("allocated", "reserved")}


def plan_one(program: Program, name: str, out: Path, again: bool) -> str:
    target = out / f"{name}.json"
    if target.exists() and not again:
        return f"{name}: there already"
    row = OneScript(program, SCRIPTS[name], out).ask_all()
    target.write_text(json.dumps(row, indent=1))
    return told(row)


def told(row: Row) -> str:
    if "error" in row:
        return f"{row['script']}: NOT CAPTURED: {row['error'][-300:]}"
    if not row["plans"]:
        return f"{row['script']}: {row['stock'].get('error', 'no plan')[-300:]}"
    words = [f"{row['script']}: {row['seconds']} s"]
    for plan in row["plans"]:
        every = plan.get("ways", []) + plan.get("others", [])
        differ = sum(bool(way["differs"]) for way in every)
        words.append(
            f"  {plan['limit']:6.2f} GiB: {plan.get('verdict', 'ERROR')}, "
            f"{len(plan.get('ways', []))} ways, {len(every)} compared, {differ} DIFFER, "
            f"leak {plan.get('growth') or [w['growth'] for w in every if w.get('growth')]}"
            f"{plan.get('error', '')[-300:]}"
        )
        first = plan["ways"][0] if plan.get("ways") else None
        if first:
            words.append(
                f"     {first['passes']} x {first['batch']} {json.dumps(first['set'])[:200]}"
            )
        if "one_sample" in plan:
            words.append(f"     one sample a pass: {json.dumps(plan['one_sample'])[:300]}")
    return "\n".join(words)


def edited_one(program: Program, out: Path, told: Row, of: Configuration, again: bool) -> str:
    """The script edited as told, captured, beside what the plan says of its first way."""
    target = out / f"{of.script.name}@{of.limit:.2f}.edited.json"
    if target.exists() and not again:
        return f"{target.stem}: there already"
    # What applied.step is given in a capture is cut like the step: neither too small nor too large.
    few = "2,4" if of.passes > 1 or of.batch < 8 else "4,8"
    sizes = [int(size) for size in (of.script.batches or few).split(",")]
    whole = of.batch
    if not of.script.by_pass:
        sizes = [of.passes * size for size in sizes]
        whole = of.batch * of.passes
    with tempfile.TemporaryDirectory() as folder:
        twin = write_twin(of.script, Path(folder))
        variables = of.environment(Path(folder))
        setting = variables.pop("PYTORCH_CUDA_ALLOC_CONF", "")
        variables.pop("PYTHONPATH")  # the program brings its own package
        answer = program.ask(
            *("predict", "--run", "--json", "--gpu", GPU, "--limit", limit_word(of.limit)),
            *("--batch", str(whole), "--batches", ",".join(map(str, sizes))),
            *(("--alloc-conf", setting) if setting else ()),
            *("--", "python", str(twin), *of.arguments("{batch}")),
            where=Path(folder),
            **variables,
        )
    row: Row = {"script": of.script.name, "limit": of.limit, "set": of.way["set"]}
    row.update(batch=of.batch, passes=of.passes, captured=kept(answer))
    target.write_text(json.dumps(row, indent=1))
    if "error" in answer:
        return f"{target.stem}: ERROR {answer['error'][-300:]}"
    words = [f"{target.stem}: {answer['seconds']} s"]
    for what, found in row["captured"]["training"].items():
        planned = told["training"][what]
        words.append(
            f"{what} {found / _GIB:.3f} GiB, planned {planned / _GIB:.3f}: "
            f"{100 * (found / planned - 1):+.3f} %"
        )
    return ", ".join(words)


def firsts(name: str, out: Path) -> list[tuple[Row, Configuration]]:
    planned = out / f"{name}.json"
    if not planned.exists() or not SCRIPTS[name].edit.exists():
        return []
    plans = json.loads(planned.read_text())["plans"]
    return [
        (plan["ways"][0], one)
        for plan in plans
        for one in configurations(SCRIPTS[name], out, plan)[:1]
    ]


def ask_all(options: argparse.Namespace) -> int:
    """Plans, and what is edited as they tell, each as soon as it can be asked."""
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    names = options.names or list(SCRIPTS)
    program = Program(options.program, options.seconds, time.monotonic() + options.within)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:

        def edit(name: str) -> list[concurrent.futures.Future[str]]:
            return [
                pool.submit(edited_one, program, out, told, one, options.again)
                for told, one in firsts(name, out)
            ]

        waiting: dict[concurrent.futures.Future[str], str] = {}
        if options.command == "plan":
            for name in names:
                waiting[pool.submit(plan_one, program, name, out, options.again)] = name
        else:
            waiting = {asked: "" for name in names for asked in edit(name)}
        while waiting:
            done = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED").done
            for one in done:
                print(one.result(), flush=True)
                name = waiting.pop(one)
                if name and options.edited:
                    waiting.update({asked: "" for asked in edit(name)})
    if options.pack:
        shutil.make_archive(str(options.pack).removesuffix(".tar.gz"), "gztar", out)
    return 0


def tiny(text: str) -> Row:
    """For a trial without a GPU: arguments by script."""
    found: Row = json.loads(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("plan", "edited"):
        ask = commands.add_parser(name)
        ask.add_argument("program")
        ask.add_argument("out", type=Path)
        ask.add_argument("names", nargs="*", metavar="NAME")
        ask.add_argument("--jobs", type=int, default=2)
        ask.add_argument("--seconds", type=float, default=400, help="for one question")
        ask.add_argument("--within", type=float, default=1e9, help="seconds for all of it")
        ask.add_argument("--again", action="store_true", help="also what has an answer already")
        ask.add_argument("--pack", type=Path, help="also all of OUT as this .tar.gz")
        if name == "plan":
            ask.add_argument("--edited", action="store_true", help="`edited` in the same pool")
        ask.set_defaults(call=ask_all)
    run = commands.add_parser("run")
    run.add_argument("out", type=Path)
    run.add_argument("results", type=Path, help="lines are added; what is there is not run again")
    run.add_argument("names", nargs="*", metavar="NAME")
    run.add_argument("--jobs", type=int, default=7, help="processes; one of them has the GPU")
    run.add_argument("--seconds", type=float, default=240, help="for one process")
    run.add_argument("--on-gpu", type=float, default=30, help="seconds that one may have the GPU")
    run.add_argument("--within", type=float, default=1e9, help="seconds for all of it")
    run.add_argument("--steps", type=int, default=8)
    run.add_argument("--roles", default="", help="of first,below,above,plain; all unless given")
    run.add_argument("--tiny", type=tiny, default={}, help=argparse.SUPPRESS)
    run.set_defaults(call=run_all)
    show = commands.add_parser("table")
    show.add_argument("out", type=Path)
    show.add_argument("results", type=Path)
    show.set_defaults(call=lambda options: table(options.out, options.results))
    options = parser.parse_args()
    result: int = options.call(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
