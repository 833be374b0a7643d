#!/usr/bin/env python3
"""How close `plimsoll predict` comes to measured runs.

    lab/predict_accuracy.py PROGRAM CAPTURES TRUTH.jsonl [--rows] [--json OUT]

CAPTURES is a folder that lab/python/capture_truth.py made: step files, and index.json, which says for
each row of TRUTH which file and batch stand for it. Prints one table: errors of the peaks of allocated and
reserved memory, over all rows and by family, and how the range holds. Needs no torch and no GPU.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time


def predict(program, captures, entry, spec, torch, more):
    command = [program, "predict", str(captures / entry["file"]), "--batch", str(entry["batch"]), "--gpu", "H200",
               "--torch", torch, "--steps", str(spec.get("steps", 5)), "--json", *more]
    if entry.get("precision"):
        command += ["--precision", entry["precision"]]
    if spec.get("alloc_conf"):
        command += ["--alloc-conf", spec["alloc_conf"]]
    begin = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if run.returncode == 2:
        raise RuntimeError(run.stderr.strip())
    return json.loads(run.stdout), seconds


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def errors(rows, key):
    return [abs(r[key] - r["true_" + key]) / r["true_" + key] * 100 for r in rows]


def summary(name, rows):
    cells = [f"{name:<22} {len(rows):4d}"]
    for key in ("allocated", "reserved"):
        e = errors(rows, key)
        cells.append(f"{statistics.median(e):7.3f} {quantile(e, .9):7.2f} {max(e):7.2f}")
    above = [(r["high"] - r["true_reserved"]) / r["true_reserved"] * 100 for r in rows]
    cells.append(f"{sum(a < 0 for a in above):6d} {statistics.median(above):8.2f}")
    return "  ".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("captures", type=pathlib.Path)
    parser.add_argument("truth", type=pathlib.Path)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--rules", action="store_true", help="by the rules alone, without what was measured or asked")
    parser.add_argument("--asked", action="store_true", help="without what was measured: as cuDNN was asked at the capture")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows here")
    options = parser.parse_args()
    index = json.loads((options.captures / "index.json").read_text())
    more = ["--calibration", "rules"] if options.rules else ["--calibration", "none"] if options.asked else []
    rows, missing, slowest = [], [], 0.0
    for line in options.truth.read_text().splitlines():
        truth = json.loads(line)
        spec = truth["spec"]
        if spec["id"] not in index:
            missing.append(spec["id"])
            continue
        torch = ".".join(truth["torch"].split(".")[:2])
        try:
            answer, seconds = predict(options.program, options.captures, index[spec["id"]], spec, torch, more)
        except RuntimeError as error:
            missing.append(f"{spec['id']}: {error}")
            continue
        slowest = max(slowest, seconds)
        rows.append({"id": spec["id"], "family": spec["model"], "allocated": answer["allocated"],
                     "reserved": answer["reserved"], "high": answer["high"], "low": answer["low"],
                     "true_allocated": truth["peak_allocated"], "true_reserved": truth["peak_reserved"],
                     "instant": answer["instant"], "assumptions": answer["assumptions"]})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.rows:
        for r in rows:
            print(f"{r['id']:<52} allocated {r['true_allocated'] / 2**20:9.1f} {(r['allocated'] / r['true_allocated'] - 1) * 100:+8.3f} %  "
                  f"reserved {r['true_reserved'] / 2**20:8.0f} {(r['reserved'] / r['true_reserved'] - 1) * 100:+8.2f} %  "
                  f"high {(r['high'] / r['true_reserved'] - 1) * 100:+7.2f} %")
    if not rows:
        sys.exit("no row could be predicted: " + "; ".join(missing[:3]))
    print("error in %                    allocated                reserved                 upper end of the range")
    print("                       rows   median     p90   worst   median     p90   worst   below  median above")
    for family in sorted({r["family"] for r in rows}):
        print(summary(family, [r for r in rows if r["family"] == family]))
    print(summary("all", rows))
    print(f"slowest prediction: {slowest:.3f} s" + (f"; {len(missing)} rows without a capture: {missing}" if missing else ""))


if __name__ == "__main__":
    main()
