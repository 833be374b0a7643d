#!/usr/bin/env python3
"""How close `plimsoll predict` comes to what one change does to a job, from the capture of the job without it.

    lab/remedies_accuracy.py PROGRAM CAPTURES REMEDIES.jsonl

CAPTURES is a folder that lab/python/remedies.py made. Each row of REMEDIES is a measured job: a base, or the base
with one change. Prints for each row the error of reserved memory, and that of the step time relative to the base's
(measured: the median from the third step on). Needs no torch and no GPU.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

RESERVED_BAR, TIME_BAR = 0.02, 0.10


def command_for(program, captures, entry, spec, base, release):
    """The flags that make the row of its base."""
    command = [program, "predict", str(captures / entry["file"]), "--gpu", "H200", "--torch", release, "--json",
               "--steps", str(spec["steps"]), "--batch", str(spec["batch"])]
    if entry["precision"]:
        command += ["--precision", entry["precision"]]
    if spec.get("ckpt"):
        command += ["--checkpoint", "all"]
    if spec.get("accum", 1) > 1:
        command += ["--accumulate", str(spec["accum"])]
    if spec["opt"] != base["opt"]:
        command += ["--optimizer", spec["opt"]]
    if spec.get("alloc_conf"):
        command += ["--alloc-conf", spec["alloc_conf"]]
    if spec.get("tf32"):
        command += ["--set", "tf32=on"]
    return command


def predict(command):
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 2:
        raise RuntimeError(run.stderr.strip().splitlines()[-1])
    return json.loads(run.stdout)


def measured_ms(row):
    return statistics.median(row["step_ms"][2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("captures", type=pathlib.Path)
    parser.add_argument("remedies", type=pathlib.Path)
    options = parser.parse_args()
    index = json.loads((options.captures / "index.json").read_text())
    truth = {}
    for line in options.remedies.read_text().splitlines():
        row = json.loads(line)
        truth[row["spec"]["id"]] = row
    answers, failed = {}, {}
    for name, row in truth.items():
        base = truth[index[name]["base"]]["spec"]
        release = ".".join(row["torch"].split(".")[:2])
        try:
            answers[name] = predict(command_for(options.program, options.captures, index[name], row["spec"], base, release))
        except RuntimeError as error:
            failed[name] = str(error)
    print(f"{'':32} {'reserved MiB':>20}  {'error':>8}   {'step ms':>14}   {'relative to base':>14} {'error':>8}")
    inside = judged = 0
    for name, answer in answers.items():
        row, base = truth[name], index[name]["base"]
        own_capture = index[name]["file"] != index[base]["file"]
        reserved = answer["reserved"] / row["peak_reserved"] - 1
        ms, base_ms = answer["step_us"] / 1e3, answers[base]["step_us"] / 1e3
        relative, true_relative = ms / base_ms, measured_ms(row) / measured_ms(truth[base])
        off = relative / true_relative - 1
        notes = [text for bad, text in ((abs(reserved) > RESERVED_BAR, "MEMORY"), (abs(off) > TIME_BAR, "TIME")) if bad]
        if own_capture:
            notes.append("(a capture of its own)")
        else:
            judged += 1
            inside += not notes
        print(f"{name:32} {answer['reserved'] / 2**20:9.0f} /{row['peak_reserved'] / 2**20:9.0f}  {100 * reserved:+7.2f} %"
              f"  {ms:7.1f} /{measured_ms(row):6.1f}   {relative:6.3f} /{true_relative:6.3f} {100 * off:+7.1f} %  {' '.join(notes)}")
    for name, why in failed.items():
        print(f"{name:32} not predicted: {why}")
    print(f"{inside} of {judged + len(failed)} rows within {100 * RESERVED_BAR:.0f} % of reserved memory and "
          f"{100 * TIME_BAR:.0f} % of relative time, from the base's capture")
    return 0


if __name__ == "__main__":
    sys.exit(main())
