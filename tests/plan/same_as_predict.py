#!/usr/bin/env python3
"""tests/plan/same_as_predict.py PROGRAM [--all]: what `plan` shows for a configuration is what `predict` says of it.

Asks `plan` about step files of tests/data and `predict` about each configuration that it shows, by --batch and --set:
memory and its range, the time of a step and the verdict are equal to the byte. Without --all a sample of the files.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ["accumulation/by_4", "lives/leak", "steps/resnet18_adamw_amp_bf16", "steps/mlp_adamw_fp32"]


def ask(program, *words):
    """The JSON document, or None where the program refuses."""
    done = subprocess.run([program, *words, "--json"], cwd=ROOT, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode in (0, 1, 3) else None


def questions(all_files):
    for path in sorted((ROOT / "tests/data").rglob("*.step.json.gz")):
        name = str(path.relative_to(ROOT / "tests/data")).removesuffix(".step.json.gz")
        if not all_files and name not in SAMPLE:
            continue
        file = str(path.relative_to(ROOT))
        yield [file, "--gpu", "RTX 4090"]
        yield [file, "--gpu", "RTX 4090", "--global-batch", "24", "--budget", "6GiB"]


def differences(program, question, way):
    words = ["predict", *question[:3], "--batch", str(way["batch"])]
    if "--budget" in question:
        words += ["--limit", question[question.index("--budget") + 1]]
    for lever, value in way["set"].items():
        words += ["--set", f"{lever}={value}"]
    predicted = ask(program, *words)
    if predicted is None:
        return [f"predict refuses: {words}"]
    figures = {**predicted, **predicted["ranges"]}
    return [
        f"{' '.join(words)}: {key} is {way[key]} by plan and {figures[key]} by predict"
        for key in ("reserved", "device", "fits", "step_us", "step_us_range")
        if way[key] != figures[key]
    ]


def shown_in(plan):
    """Every configuration of which it has figures."""
    ways = [way for key in ("ways", "alone", "frontier") for way in plan.get(key, [])]
    ways += [worth[key] for worth in plan.get("worth", []) for key in ("alone", "without")]
    ways += [plan[key] for key in ("as_captured", "otherwise", "closest") if plan.get(key)]
    return {json.dumps(way): way for way in ways}.values()


def main():
    program = str(Path(sys.argv[1]).resolve())
    wrong, asked = [], 0
    for question in questions("--all" in sys.argv or "PLIMSOLL_NIGHTLY" in os.environ):
        plan = ask(program, "plan", *question)
        for way in shown_in(plan or {}):
            asked += 1
            wrong += differences(program, question, way)
    print("\n".join(wrong))
    print(f"{asked} configurations, {len(wrong)} differences")
    sys.exit(1 if wrong or not asked else 0)


main()
