#!/usr/bin/env python3
"""Runs every script of this folder, unedited, under `plimsoll run` on a GPU, and prints a table.

    drive.py PROGRAM OUT [NAME…]     OUT: a folder for what is recorded, and results.json

A row says how many processes left a snapshot, with which exit code the job and `plimsoll run` ended,
and the verdict. `wanted` are words of the verdict or of the gravest finding that an expert would give.
"""

import argparse
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

# name: command, budget, snapshots, exit code, what to find, seconds after which it gets SIGTERM
JOBS = {
    "single": ([*PYTHON, "single.py"], "16GiB", 1, 1, r"graph|grow|kept|leak", None),
    "ddp": ([*TORCHRUN, "--nproc-per-node=4", "ddp.py"], "7GiB", 4, 1, r"[Rr]ank 2", None),
    "fsdp2": ([*TORCHRUN, "--nproc-per-node=2", "fsdp2.py"], "16GiB", 2, 1, r"full|limit", None),
    "loader": ([*PYTHON, "loader.py"], "12GiB", 1, 1, r"[Ll]ong|larger|full|limit", None),
    "killed": ([*PYTHON, "killed.py"], None, 1, 143, r"[Pp]eak", 15),
    "compiled": ([*PYTHON, "compiled.py"], "12GiB", 1, 1, r"full|limit", None),
    "hf_trainer": ([*PYTHON, "hf_trainer.py"], "16GiB", 1, 1, r"full|limit", None),
    "lightning": ([*PYTHON, "lightning_job.py"], "16GiB", 1, 1, r"kept|grow|validation", None),
    "accelerate": (
        [*PYTHON, "-m", "accelerate.commands.launch", "--num_processes=1", "accelerate_retry.py"],
        "12GiB",
        1,
        0,
        r"survived|caught|went on|[Pp]eak",
        None,
    ),
    "notebook": (
        [*PYTHON, "-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", "--stdout"]
        + ["notebook.ipynb"],
        "12GiB",
        1,
        1,
        r"full|limit",
        None,
    ),
}
NEEDS = {
    "hf_trainer": "transformers",
    "lightning": "pytorch_lightning",
    "accelerate": "accelerate",
    "notebook": "nbconvert",
}


def run(program, name, out):
    command, budget, _, _, _, seconds = JOBS[name]
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    line = [program, "run", "-o", str(folder)] + (["--budget", budget] if budget else [])
    begun = time.time()
    with open(out / (name + ".log"), "w") as log:
        job = subprocess.Popen([*line, "--", *command], cwd=HERE, stdout=log, stderr=log)
        try:
            code = job.wait(seconds)
        except subprocess.TimeoutExpired:
            job.terminate()
            code = job.wait()
    return folder, code, time.time() - begun


def how(process):
    ended = process["ended"] or {}
    return ended.get("type") or ended.get("signal") or ended.get("how")


def judge(name, folder, code, seconds):
    processes = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    explanation = folder / "explanation.txt"
    verdict = ""
    if explanation.exists():
        verdict = " ".join(explanation.read_text().split("\n\n")[0].split())
    _, _, snapshots, wanted_code, wanted, _ = JOBS[name]
    found = len(list(folder.glob("*.pickle")))
    right = found == snapshots and code == wanted_code and bool(re.search(wanted, verdict))
    return {
        "name": name,
        "snapshots": f"{found} of {snapshots}",
        "code": code,
        "ended": [how(p) for p in processes],
        "ooms": [p["ooms"] for p in processes],
        "optimizer_steps": [p["optimizer_steps"] for p in processes],
        "events": [s["events"] for p in processes for s in p["snapshots"]],
        "bytes": [s["bytes"] for p in processes for s in p["snapshots"]],
        "writing": [p["seconds"] for p in processes],
        "verdict": verdict,
        "right": right,
        "wall": round(seconds, 1),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    program = str(pathlib.Path(arguments.program).resolve())
    results = []
    for name in arguments.names or JOBS:
        needed = NEEDS.get(name, "torch")
        if importlib.util.find_spec(needed) is None:
            print(f"{name:11} not run: {needed} is not installed", flush=True)
            continue
        results.append(judge(name, *run(program, name, arguments.out.resolve())))
        (arguments.out / "results.json").write_text(json.dumps(results, indent=1))
        row = results[-1]
        right = "right" if row["right"] else "WRONG"
        print(
            f"{name:11} {row['snapshots']} snapshots, exit code {row['code']}, {right}, "
            f"{row['wall']:.0f} s: {row['verdict']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
