"""Joins captured calls with what was measured: sample_operators.py CAPTURED MEASURED OUT.

CAPTURED is what capture_operators.py wrote, without the ends: OUT/ops for OUT/ops.step.jsonl.gz and
OUT/ops.index.json. Takes every fourth captured row, whatever the rules make of it. A line of the
sample is {"row": as measured, "step": as captured}; tests/data/operators tells which there are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captured")
    parser.add_argument("measured")
    parser.add_argument("out")
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--without", default="", help="an `op` that another file has")
    options = parser.parse_args()
    with lzma.open(options.measured, "rt") as file:
        measured = [json.loads(line) for line in file]
    with gzip.open(f"{options.captured}.step.jsonl.gz", "rt") as file:
        steps = [json.loads(line) for line in file]
    with open(f"{options.captured}.index.json") as file:
        pairs = [(measured[at["row"]], steps[at["line"]]) for at in json.load(file)]
    pairs = [pair for pair in pairs if pair[0].get("op", "attention") != options.without]
    sample = [
        json.dumps({"row": row, "step": step}, separators=(",", ":")) + "\n"
        for row, step in pairs[:: options.every]
    ]
    packed = lzma.compress("".join(sample).encode(), preset=9 | lzma.PRESET_EXTREME)
    with open(options.out, "wb") as file:
        file.write(packed)
    print(f"{len(sample)} of {len(pairs)} captured rows, {len(packed)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
