"""The harness that holds plans against a GPU, on the CPU with tiny jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).resolve().parents[2] / "lab/python"


def way(batch, passes, step_us=1000, **levers):
    reserved = {"low": 0, "best": 1, "high": 2**30}
    return {
        "batch": batch,
        "passes": passes,
        "set": {lever: text for lever, (text, _) in levers.items()},
        "levers": [
            {"lever": lever, "set_to": text, "value": value}
            for lever, (text, value) in levers.items()
        ],
        "step_us": step_us,
        "reserved": reserved,
        "surely_fits": True,
    }


def run(*arguments):
    command = [sys.executable, str(BENCH / "run_plans.py"), *map(str, arguments), "--tiny"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": str(BENCH.parent)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_plans_are_run_and_told(tmp_path):
    plans, results = tmp_path / "plans", tmp_path / "results.jsonl"
    plans.mkdir()
    checkpointed = ("1", {"modules": ["1"]})
    precision = "amp_bf16+channels_last"
    first = way(
        4,
        2,
        accumulation=("2", {"passes": 2}),
        checkpointing=checkpointed,
        precision=(precision, {"name": precision}),
    )
    fused = {"name": "adamw", "form": "fused", "in_backward": False}
    plan = {
        "schema": "plimsoll.plan/1",
        "samples": 8,
        "ways": [
            first,
            way(8, 1, checkpointing=("nowhere", {"modules": ["nowhere"]})),
            way(8, 1, optimizer=("adamw:fused", fused)),
        ],
        "alone": [way(8, 1, checkpointing=checkpointed)],
    }
    (plans / "tiny_images@1.json").write_text(json.dumps(plan))
    (plans / "tiny_images@2.json").write_text(json.dumps({**plan, "ways": [first], "alone": []}))
    run("run", plans, results, "--device", "cpu")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(row["budget"], row["kind"], row["number"], row.get("trained")) for row in rows] == [
        (1, "way", 0, True),
        (1, "way", 1, None),
        (1, "way", 2, True),
        (1, "alone", 0, True),
        (2, "way", 0, True),
    ]
    assert "no block 'nowhere'" in rows[1]["error"]
    assert len(rows[0]["times"]) == 8 and rows[0]["loss"] is not None
    assert rows[4]["measured_at"] == 1 and rows[4]["step_ms"] == rows[0]["step_ms"]
    text = run("table", plans, results)
    assert "trained within the budget: 4 of 5" in text
    assert "times as fast as the best lever alone" in text


@pytest.mark.nightly
def test_time_that_is_up_is_told(tmp_path):
    plans, results = tmp_path / "plans", tmp_path / "results.jsonl"
    plans.mkdir()
    plan = {"schema": "plimsoll.plan/1", "ways": [way(8, 1)]}
    (plans / "tiny_images@1.json").write_text(json.dumps(plan))
    run("run", plans, results, "--device", "cpu", "--seconds", 0)
    assert json.loads(results.read_text())["error"] == "not run: no time left"
    assert "not run" in run("table", plans, results)
