"""Captures every job of truth.jsonl without a GPU: capture_truth.py OUT [--truth F] [--tools DIR].

Rows that differ in nothing but the batch share one capture. Writes OUT/<job>.step.json.gz and
OUT/index.json: {row id: {"file", "batch"}}. `--shard 0/2` takes every second job; the index is
written by each shard under its own name where there are several.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from zoo_jobs import capture_spec, load_tool, torchvision_without_extension

_SHARED = Path(__file__).resolve().parents[3] / "shared"


def jobs(truth: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows by the name of their job, which is their id without the batch."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in truth.read_text().splitlines():
        spec = json.loads(line)["spec"]
        found.setdefault(re.sub(r"_b\d+(?=_)", "", spec["id"], count=1), []).append(spec)
    for name, specs in found.items():
        kinds = {json.dumps({**s, "id": 0, "batch": 0}, sort_keys=True) for s in specs}
        if len(kinds) != 1:
            raise SystemExit(f"{name}: rows differ in more than the batch")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--truth", type=Path, default=_SHARED / "data" / "truth.jsonl")
    parser.add_argument("--tools", default=str(_SHARED / "tools"))
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--shard", default="0/1")
    options = parser.parse_args()
    part, parts = (int(n) for n in options.shard.split("/"))
    torchvision_without_extension()
    zoo = load_tool(options.tools, "zoo")
    options.out.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    failed = 0
    for number, (name, specs) in enumerate(sorted(jobs(options.truth).items())):
        if number % parts != part or options.only not in name:
            continue
        file = f"{name}.step.json.gz"
        start = time.perf_counter()
        try:
            made = capture_spec(zoo, specs[0], options.gpu)
        except Exception as error:
            failed += 1
            print(f"{name:44s} FAILED {type(error).__name__}: {error}", flush=True)
            continue
        made.write(options.out / file)
        index.update({spec["id"]: {"file": file, "batch": spec["batch"]} for spec in specs})
        seconds = time.perf_counter() - start
        print(f"{name:44s} {len(made.events):6d} events {seconds:5.1f} s {made.notes}", flush=True)
    target = "index.json" if parts == 1 else f"index.{part}.json"
    (options.out / target).write_text(json.dumps(index, indent=1, sort_keys=True))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
