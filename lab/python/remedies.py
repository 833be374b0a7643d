"""Captures the jobs of remedies.jsonl without a GPU: remedies.py OUT [--remedies F] [--tools DIR].

A row is a job with one change (precision, batch, optimizer, allocator settings ...) against the
base of its family, `fix_FAMILY__base`. One capture of the base has every precision and memory
format that its rows need; what changes the data itself (another sequence length) is captured on
its own. Writes OUT/<base>.step.json.gz and OUT/index.json: {row id: {"file", "base", "precision"}}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from zoo_jobs import capture_spec, load_tool, torchvision_without_extension

_SHARED = Path(__file__).resolve().parents[3] / "shared"
_PRECISIONS = {"amp_bf16": "amp_bf16", "amp_fp16": "amp_fp16", "bf16_pure": "bf16"}
#: Of a spec; everything else that differs from the base is applied by the program.
_DATA = ("family", "model", "img", "seq", "width", "config")


def precision_of(spec: dict[str, Any]) -> str:
    """The variant's name."""
    name = _PRECISIONS.get(spec.get("dtype", ""), "")
    return "+".join(
        part for part in (name, "channels_last" * bool(spec.get("channels_last"))) if part
    )


def captures_of(remedies: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows by the id of the row to capture, which comes first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in remedies.read_text().splitlines():
        spec = json.loads(line)["spec"]
        for rows in found.values():
            if all(rows[0].get(key) == spec.get(key) for key in _DATA):
                rows.append(spec)
                break
        else:
            found[spec["id"]] = [spec]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--remedies", type=Path, default=_SHARED / "data" / "remedies.jsonl")
    parser.add_argument("--tools", default=str(_SHARED / "tools"))
    parser.add_argument("--only", default="", help="jobs whose id contains this")
    options = parser.parse_args()
    torchvision_without_extension()
    zoo = load_tool(options.tools, "zoo")
    options.out.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for base, rows in captures_of(options.remedies).items():
        file = f"{base}.step.json.gz"
        for spec in rows:
            family = spec["id"].split("__")[0]
            index[spec["id"]] = {
                "file": file,
                "base": f"{family}__base",
                "precision": precision_of(spec),
            }
        if options.only not in base:
            continue
        start = time.perf_counter()
        precisions = sorted({precision_of(spec) for spec in rows} - {""})
        made = capture_spec(zoo, rows[0], "H200", precisions)
        made.write(options.out / file)
        print(f"{base:28s} {made.variants} {time.perf_counter() - start:.0f} s {made.notes}")
    (options.out / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
